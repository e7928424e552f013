"""Tests of the renderer of notebooks: content, frequency of updates, and escaping."""

import base64
import re
import sys
import types
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

from learner.events import ArrayInfo, EpochEnded, Message, MetricInfo, Overview, RunFailed, SplitEnded
from learner.renderers import NotebookRenderer, default_renderer
from learner.renderers.kernel import in_notebook
from learner.util.chart import COLOURS
from tests.support.codes import raises_code

EVIL = '<script>alert(\'1\')</script> " onerror="x" & \x1b[31m'


class Page(HTMLParser):
    """Parse HTML like a browser: tags, attributes, cells of each row, and texts with their parent tags."""

    OPEN_ONLY = ("br", "img")

    def __init__(self, content):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open, self.cells = [], [], [], [], []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")
        if tag not in self.OPEN_ONLY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append((self.open[-1], text))
        if self.open[-1] in ("td", "th"):
            self.cells[-1][-1] += text

    def all_of(self, name):
        return [value for attribute, value in self.attributes if attribute == name]


@pytest.fixture
def displays():
    """Return a list of displays: content, identifier, and whether it replaced an earlier one."""
    return []


@pytest.fixture
def renderer(displays, clock):
    return NotebookRenderer(lambda *display: displays.append(display), clock)


def html(displays):
    return displays[-1][0]["text/html"]


def test_run_is_one_output_that_is_replaced(renderer, displays, play):
    play.run(renderer, seconds=4)
    places = [place for _, place, _ in displays]
    assert len(set(places)) == 1
    assert [update for *_, update in displays] == [False] + [True] * (len(displays) - 1)
    assert set(displays[0][0]) == {"text/html", "text/plain"}
    page = Page(html(displays))
    assert page.cells == [
        ["metric", "now", "best", "epoch"],
        ["valid/Loss", "0.625", "0.625", "1"],
        ["valid/Accuracy", "0.875", "0.875", "1"],
        ["train/Loss", "0.1667", "0.1667", "3"],
        ["train/Accuracy", "0.75", "0.75", "1"],
    ]
    assert page.texts[0] == ("b", "runs/a: 3 epochs of 45 steps, 10,378 parameters")
    assert ("div", "ended at epoch 3, step 135, 4.6 s: num_epochs") in page.texts
    assert "progress" not in page.tags
    assert "as of" not in html(displays)
    assert displays[-1][0]["text/plain"].splitlines() == [
        "runs/a: 3 epochs of 45 steps, 10,378 parameters",
        "ended at epoch 3, step 135, 4.6 s: num_epochs",
        "metric             now    best  epoch  trend",
        "valid/Loss       0.625   0.625      1  ▅▅▅",
        "valid/Accuracy   0.875   0.875      1  ▅▅▅",
        "train/Loss      0.1667  0.1667      3  █▃▁",
        "train/Accuracy    0.75    0.75      1  ▅▅▅",
    ]


def test_table_of_the_model_is_first(renderer, displays, play):
    """With several runs in one cell, each output shows the model of its own run."""
    arrays = (ArrayInfo("out.kernel", (64, 10), "float32", "params", True, 2560),)
    where = {"strategy": "cpu", "devices": 1, "rows": 32, "spread": 1, "accumulate": 1, "flops": 9, "flops_exact": True}
    length = {"batches": 45, "steps_per_epoch": 45, "num_epochs": 3, "steps": 135}
    overview = Overview(0.0, f"<Net> {EVIL}", arrays, "adam", memory={}, **where, **length)
    for events in ([overview], []):
        for event in events:
            renderer.on_event(event)
        play.run(renderer, seconds=4)
    with_model, without = (
        next(content for content, displayed, _ in reversed(displays) if displayed == place)
        for place in dict.fromkeys(place for _, place, _ in displays)
    )
    (table,) = [text for tag, text in Page(with_model["text/html"]).texts if tag == "pre"]
    assert table.startswith("<Net> ")
    assert "kernel" in table
    assert "kernel" in with_model["text/plain"]
    assert "kernel" not in without["text/html"] + without["text/plain"]


def test_each_metric_has_one_chart_with_its_splits(renderer, displays, play):
    play.run(renderer, seconds=4)
    page = Page(html(displays))
    alternatives = page.all_of("alt")
    assert alternatives == [
        "Loss over steps; last: train 0.1667, valid 0.625",
        "Accuracy over steps; last: train 0.75, valid 0.875",
    ]
    picture = ET.fromstring(base64.b64decode(page.all_of("src")[0].partition(",")[2]))
    lines = [each.get("points") for each in picture if each.tag.endswith("polyline")]
    # x from 45 to 135 maps to 46 to 316, y from 1/6 to 5/8 to 144 to 4; 1/2 is 27 % below the top
    assert lines == ["46,42.18 181,118.5 316,144", "46,4 181,4 316,4"]
    assert ("figure", "0.1667 to 0.625, steps 45 to 135") in page.texts


def test_split_has_one_color_in_all_charts(renderer, displays, play):
    """The first chart, of the monitor, has no `train`."""
    metrics = [MetricInfo(split, name) for split, name in (("train", "Loss"), ("valid", "Loss"), ("valid", "Error"))]
    play.start(renderer, metrics=metrics, monitor="valid/Error")
    for epoch in (1, 2):
        play.epoch(renderer, epoch, values={"train/Loss": 0.5, "valid/Loss": 0.25, "valid/Error": 0.125})
    renderer.close()
    page = Page(html(displays))
    pictures = [ET.fromstring(base64.b64decode(each.partition(",")[2])) for each in page.all_of("src")]
    colours = [[line.get("stroke") for line in picture if line.tag.endswith("polyline")] for picture in pictures]
    assert [alt.split()[0] for alt in page.all_of("alt")] == ["Error", "Loss"]
    assert colours == [[COLOURS[1]], [COLOURS[0], COLOURS[1]]]
    names = [text.strip() for tag, text in page.texts if tag == "figcaption" and text.strip()]
    assert names == ["valid", "train", "valid"]


def test_output_during_an_epoch(renderer, displays, play):
    play.start(renderer)
    assert {"epoch 1/3  compiling", "as of 1970-01-01 00:00:00 UTC"} <= {text for _, text in Page(html(displays)).texts}
    for done in (15, 30):
        play.dispatch(renderer, 1, done, 15, loss=1 / done)
    page = Page(html(displays))
    assert ("div", "epoch 1/3  step 30/45  30 steps/s  3.5 s left") in page.texts
    assert [dict(page.attributes)[name] for name in ("value", "max")] == ["30", "45"]
    assert page.cells[1:] == [
        ["valid/Loss", "", "", ""],
        ["valid/Accuracy", "", "", ""],
        ["train/Loss", "0.03333", "", ""],
        ["train/Accuracy", "", "", ""],
    ]
    assert page.all_of("alt") == ["Loss over steps; last: train 0.03333"]


def test_number_of_updates_per_second_is_bounded(renderer, displays, play, clock):
    play.start(renderer, num_epochs=1000)
    began = clock.now
    for epoch in range(1, 501):
        play.epoch(renderer, epoch, seconds=0.02)
    updates, seconds = len(displays) - 1, clock.now - began
    assert 2 * seconds - 1 <= updates <= 2 * 2 * seconds + 1, "twice for steps, and twice for epochs"
    play.end(renderer, 500, 22_500)
    assert len(displays) == updates + 2, "the end is shown at once"


def test_end_of_a_slow_epoch_is_shown_at_once(renderer, displays, play):
    """The last batch was shown just before, and the next step takes a minute."""
    play.start(renderer)
    play.dispatch(renderer, 1, 1, 1, seconds=60)
    renderer.on_event(SplitEnded(0.0, "train", 1, 45, {"Loss": 0.125}, 60.0))
    renderer.on_event(EpochEnded(0.0, 1, 45, {"train/Loss": 0.125}, 60.0))
    assert Page(html(displays)).cells[3] == ["train/Loss", "0.125", "0.125", "1"]


@pytest.mark.full
def test_size_of_the_output_is_bounded(renderer, displays, play):
    sizes = []
    play.start(renderer, num_epochs=None)
    for epoch in range(1, 401):
        play.epoch(renderer, epoch, seconds=0.3, count=45)
        sizes.append(len(html(displays)))
    assert max(sizes) < 30_000
    assert max(sizes[200:]) < 1.2 * max(sizes[:100])


def test_closing_shows_pending_values(renderer, displays, play):
    play.start(renderer)
    play.validate(renderer, 1, 1, Loss=0.5)
    assert len(displays) == 1
    renderer.close()
    assert ["valid/Loss", "0.5"] in [cells[:2] for cells in Page(html(displays)).cells]
    renderer.close()
    assert len(displays) == 2


def test_second_run_of_a_cell_has_a_new_output(renderer, displays, play):
    renderer.on_event(Message(0.0, 20, "before"))
    assert displays == []
    for _ in range(2):
        play.run(renderer, seconds=4)
    places = [place for _, place, _ in displays]
    assert len(set(places)) == 2
    assert [update for *_, update in displays].count(False) == 2
    assert ("div", "before") in Page(displays[0][0]["text/html"]).texts
    first = next(content for content, place, _ in displays if place == places[-1])["text/html"]
    assert "before" not in first
    assert "num_epochs" not in first


def test_messages_texts_and_summary(renderer, displays, play, summary):
    play.start(renderer)
    for number in range(15):
        renderer.on_event(Message(0.0, 30 if number == 14 else 20, f"message {number}\nand more"))
    play.validate(renderer, 1, 30, Confusion="1 0\n0 1")
    play.end(renderer, show_summary=True, summary=summary)
    page = Page(html(displays))
    texts = [text for _, text in page.texts]
    assert texts.index("5 earlier messages in experiment.log") + 1 == texts.index("message 5")
    assert ("b", "warning: message 14") in page.texts
    assert ("pre", "1 0\n0 1") in page.texts
    assert ("div", "valid/Confusion of epoch 1") in page.texts
    assert "  valid Confusion of epoch 1:\n    1 0\n    0 1\n" in displays[-1][0]["text/plain"]
    assert texts[-1] == "checkpoints: checkpoint/45 (epoch 1, best)"


def test_failure_is_shown_at_once(renderer, displays, play):
    play.start(renderer)
    renderer.on_event(RunFailed(0.0, 1, 30, "ValueError: no loss"))
    assert ("div", "failed at epoch 1, step 30: ValueError: no loss") in Page(html(displays)).texts


def test_names_and_texts_are_escaped(renderer, displays, play, clock):
    """Names, texts, messages and errors of an untrusted run appear as text only."""
    metrics = [
        MetricInfo(EVIL, EVIL, unit=EVIL, higher_is_better=True),
        MetricInfo("train", EVIL, higher_is_better=False),
        MetricInfo("train", "Loss"),
    ]
    play.start(renderer, metrics=metrics, monitor=EVIL)
    play.validate(renderer, 1, 30, **{EVIL: 1.0, "Text": f"{EVIL}\n</pre>{EVIL}"})
    renderer.on_event(EpochEnded(0.0, 1, 45, {f"train/{EVIL}": 1.0}, 0.1))
    renderer.on_event(Message(0.0, 30, EVIL))
    clock.now += 9
    renderer.on_event(RunFailed(0.0, 1, 1, EVIL))
    content = html(displays)
    page = Page(content)
    ours = {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "img", "br", "span", "pre"}
    assert set(page.tags) <= ours
    assert {name for name, _ in page.attributes} <= {"style", "scope", "src", "alt", "aria-hidden", "value", "max"}
    assert all(value.startswith("data:image/svg+xml;base64,") for value in page.all_of("src"))
    assert "<script" not in content
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", content + displays[-1][0]["text/plain"])
    escaped = EVIL.replace("\x1b", "?")
    assert {text for _, text in page.texts if escaped in text} >= {
        f"{escaped}/{escaped} ({escaped})",
        f"warning: {escaped}",
        f"failed at epoch 1, step 1: {escaped}",
    }
    for svg in page.all_of("src"):
        assert "script" not in base64.b64decode(svg.partition(",")[2]).decode()


def test_number_of_metrics_is_bounded(renderer, displays, play):
    metrics = [MetricInfo("valid", f"M{number}") for number in range(60)] + [MetricInfo("valid", "Text", numeric=False)]
    play.start(renderer, metrics=metrics, monitor="valid/M50")
    play.validate(renderer, 1, 45, Text="a text", **{f"M{number}": 1.0 for number in range(60)})
    renderer.close()
    page = Page(html(displays))
    assert len(page.cells) == 1 + 40
    assert ("div", "and 20 more metrics") in page.texts
    assert [alt.split()[0] for alt in page.all_of("alt")] == ["M50", "M0", "M1", "M2", "M3", "M4"]


def test_numbers_that_are_not_finite_are_shown(renderer, displays, play):
    play.start(renderer)
    play.dispatch(renderer, 1, 15, 15, loss=np.nan)
    play.validate(renderer, 1, 15, Loss=np.inf, Accuracy=np.nan)
    renderer.close()
    page = Page(html(displays))
    assert [cells[1] for cells in page.cells[1:]] == ["inf", "nan", "nan", ""]
    assert page.all_of("alt")[1] == "Accuracy over steps; last: valid nan"


class ZMQInteractiveShell:
    """The shell of kernels of notebooks, by name."""


class ColabShell(ZMQInteractiveShell):
    """A shell that derives from it."""


class TerminalInteractiveShell:
    """The shell of IPython in a terminal."""


@pytest.mark.parametrize(
    ("shell", "is_one"),
    [(ZMQInteractiveShell(), True), (ColabShell(), True), (TerminalInteractiveShell(), False), (None, False)],
    ids=lambda value: type(value).__name__,
)
def test_notebooks_are_detected_by_their_shell(monkeypatch, shell, is_one):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert in_notebook() is is_one
    assert isinstance(default_renderer(), NotebookRenderer) is is_one


def test_renderer_is_refused_outside_of_notebooks(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    with raises_code("renderer-notebook-missing", "RichRenderer"):
        NotebookRenderer()


CELL = """
import jax.numpy as jnp, numpy as np, optax
from learner import LearnerBuilder, RegressionOutput
from learner.data import ArrayDataset

def step(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])

x = np.arange(64, dtype=np.float32).reshape(32, 2) / 64
data = ArrayDataset({"x": x, "y": x.sum(1)})
builder = LearnerBuilder("run", overwrite=True).num_epochs(3).with_batch_size(8).summary()
learner = builder.build({"w": jnp.zeros(2)}, optax.sgd, 0.5, train_step=step, valid_step=step)
result = learner.fit(data, data)
"""


@pytest.mark.full
@pytest.mark.filterwarnings("default")  # as in users' notebooks
def test_notebook_with_a_kernel(tmp_path):
    """A cell runs twice. Each time, the saved notebook has one table and no error. Then the cell runs without a client
    that receives its output.
    """
    import nbformat
    from jupyter_client import BlockingKernelClient
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    with client.setup_kernel():
        for _ in range(2):
            client.execute_cell(notebook.cells[0], 0)
            nbformat.write(notebook, tmp_path / "saved.ipynb")
            (cell,) = nbformat.read(tmp_path / "saved.ipynb", as_version=4).cells
            outputs = [output for output in cell.outputs if output.output_type != "stream"]
            assert [output.output_type for output in outputs] == ["display_data"]
            page = Page(outputs[0].data["text/html"])
            assert page.tags.count("table") == 1
            assert [row[0] for row in page.cells] == ["metric", "valid/Loss", "train/Loss"]
            assert any("ended at epoch 3, step 12" in text for _, text in page.texts)
            assert [output.text for output in cell.outputs if output.get("name") == "stderr"] == []
        client.kc.execute(CELL)
        client.kc.stop_channels()
        second = BlockingKernelClient()
        second.load_connection_info(client.km.get_connection_info())
        second.start_channels()
        second.wait_for_ready(timeout=300)
        messages = []
        second.execute_interactive(
            "print(result.stopped_by, len(result.history['valid/Loss']))", output_hook=messages.append, timeout=300
        )
        second.stop_channels()
        assert [message["content"]["text"] for message in messages if message["msg_type"] == "stream"] == [
            "num_epochs 3\n"
        ]
