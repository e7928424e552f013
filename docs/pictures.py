"""Make the pictures of the first page and of the page on populations: `python docs/pictures.py`. Reports need
`chromium`.
"""

import asyncio
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import optax
from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[1]
STATIC = Path(__file__).parent / "static"
sys.path.insert(0, str(ROOT))

from learner import ClassificationOutput, LearnerBuilder  # noqa: E402
from learner.cli.main import main  # noqa: E402
from learner.data import digits  # noqa: E402
from learner.examples.models import MLP  # noqa: E402
from learner.metrics import Accuracy  # noqa: E402
from learner.reports.live.app import WatchApp  # noqa: E402
from learner.reports.live.view import PlotView  # noqa: E402
from learner.reports.live.watched import RunWatcher  # noqa: E402
from tests.support.pseudoterminal import Terminal  # noqa: E402

FIT = ["fit", "configs/digits.yaml", "--num_epochs=300", "--summary=false"]
RATES = (1e-4, 1e-3, 1e-2)
CHOOSE = """<script>addEventListener("load", () => setTimeout(() => {
  const group = document.getElementById("group");
  group.value = "CHOICE";
  group.dispatchEvent(new Event("input", { bubbles: true }));
}, 5000));</script>"""


def terminal() -> str:
    """Return the picture of a run that trains in a terminal."""
    shown = Terminal(FIT, 100, 26)
    shown._wait(lambda: re.search(r"epoch [4-9]\d/300 .*steps/s", shown.text), "the run trained too fast or too slowly")
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    for row in range(shown.screen.lines):
        line = Text(no_wrap=True)
        for column in range(shown.screen.columns):
            cell = shown.screen.buffer[row][column]
            colour = (
                None if cell.fg == "default" else f"#{cell.fg}" if re.fullmatch("[0-9a-f]{6}", cell.fg) else cell.fg
            )
            line.append(cell.data, Style(color=colour, bold=cell.bold))
        console.print(line)
    shown.kill(15)
    shown.end()
    return console.export_svg(title="learner " + " ".join(FIT[:2]))


def watch() -> str:
    """Return the picture of the live view."""

    async def screenshot() -> str:
        watched = RunWatcher(["runs"])
        watched.refresh()
        app = WatchApp(watched, PlotView(["Loss", "Accuracy"], x="epoch"))
        async with app.run_test(size=(130, 36)) as pilot:
            while watched.read(["Loss", "Accuracy"]):
                pass
            app.redraw()
            await pilot.pause(1.0)
            return app.export_screenshot(title="learner watch runs")

    return asyncio.run(screenshot())


def population() -> None:
    """Train a population of two rates and four seeds."""
    builder = LearnerBuilder("grid").metrics(Accuracy()).with_batch_size(32).num_epochs(10).renderer(None)
    builder.population(lr=[3e-4, 3e-3], seed=range(4))
    learner = builder.build(
        lambda rngs: MLP([64, 64, 10], rngs=rngs), optax.adamw, 1e-3, train_step=step, valid_step=step
    )
    learner.fit(digits("train"), digits("valid"))


def step(model: Any, batch: Any) -> Any:
    """Return the output of the classifier."""
    return ClassificationOutput.from_logits(model(batch["image"]), batch["label"])


def report(path: Path, runs: str, *, group: str = "") -> None:
    """Write the picture of a report. `group`: the choice of runs whose means are shown."""
    main(["report", runs, "-o", "report.html"])
    Path("report.html").write_text(Path("report.html").read_text() + CHOOSE.replace("CHOICE", group))
    size = ["--window-size=1280,900", "--force-device-scale-factor=1", "--hide-scrollbars"]
    page = Path("report.html").absolute().as_uri()
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *size, "--virtual-time-budget=30000"]
    subprocess.run([*command, "--screenshot=report.png", page], check=True, capture_output=True)
    Image.open("report.png").convert("RGB").quantize(64).save(path, optimize=True)


def make() -> None:
    """Train, and write the pictures."""
    os.chdir(tempfile.mkdtemp())
    (STATIC / "terminal.svg").write_text(_without_fonts(terminal()))
    shutil.rmtree("runs/digits")
    for rate in RATES:
        main(["fit", "configs/digits.yaml", f"--directory=runs/lr-{rate:g}", f"--lr.first={rate}"])
    (STATIC / "watch.svg").write_text(_without_fonts(watch()))
    report(STATIC / "report.png", "runs")
    population()
    report(STATIC / "population.png", "grid", group="all but the seed")


def _without_fonts(svg: str) -> str:
    """Remove web fonts from the picture, so that the browser uses its own."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    make()
