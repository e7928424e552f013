"""Logger for Weights & Biases: values, config and summary of a run, on its server or offline."""

import contextlib
import html
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.events import Message, RunEnded, RunFailed, RunStarted, SamplesLogged, SplitEnded, StepsEnded
from learner.loggers.base import EVERY_DEAR
from learner.loggers.checkpoint_upload import check_log_model, checkpoints_to_keep
from learner.loggers.exactly_once import ExactlyOnceLogger, UploadCursor, new_id
from learner.loggers.secrets import resolve
from learner.runs.flat_config import flat
from learner.util.json_values import encode
from learner.util.optional import refuse_missing
from learner.util.png import pixels
from learner.util.samples import Histogram, Sample

MODES = ("online", "offline")
SECONDS_TO_START = 30.0
FILE = "wandb.json"
STARTED = re.compile(r"(offline-)?run-\d{8}_\d{6}-([0-9a-f]{12})(-[0-9a-f]{12})?")  # the directory of a start


class WandB(ExactlyOnceLogger):
    """Log a run to Weights & Biases.

    Values of whole splits are logged by key (`valid/Loss`), values of single steps as `step/train/Loss`, with `epoch`
    and `step`, which is the axis of all plots. Texts (a confusion matrix) are logged as `text/valid/...`, and as
    `picture/valid/...` if they can be drawn. The newest texts and the results are in the summary, commit and
    environment in the config, messages in the log. A resumed run continues under the same id, which `wandb.json` in its
    directory stores; logged values remain.

    Needs wandb and pillow, of the extra `wandb`. wandb itself reads the key of the account. Offline, the files are in
    `wandb/` of the run's directory, one directory for each start; `wandb sync` sends them.

    Args:
      project: the name of the project.
      name: the name of the run; default: the name of its directory.
      mode: `"online"` or `"offline"`; default: wandb's environment variables.
      every_steps: see `RunLogger`.
      every_epochs: see `RunLogger`.
      log_model: checkpoints to store at the end of the run, as artifacts of the type `model`: `"best"` (the newest, if
        there is no best one), or `"all"` that the run has then. Default: none.

    Raises:
      LearnerError: wandb or pillow is not installed, or the mode is unknown.
    """

    file = FILE

    def __init__(
        self,
        project: str = "learner",
        name: str | None = None,
        mode: str | None = None,
        every_steps: int | None = EVERY_DEAR,
        every_epochs: int = 1,
        log_model: str | None = None,
    ):
        super().__init__(every_steps, every_epochs)
        if mode is not None and mode not in MODES:
            raise LearnerError(
                f"mode of WandB is {mode!r}; it needs 'online', 'offline', or None", code="logger-wandb-mode-unknown"
            )
        self._log_model = check_log_model("WandB", log_model)
        refuse_missing("wandb", "wandb", "WandB")
        refuse_missing("PIL", "wandb", "WandB")
        self._project, self._name = resolve((project, name))
        self._mode: Any = mode
        self._run: Any = None

    def started(self, event: RunStarted) -> None:
        """Start the run, or resume it."""
        super().started(event)
        self._directory = event.directory.absolute()
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.cursor.id = self.cursor.id or new_id()
        options: dict[str, Any] = {"silent": True, "console": "off", "reinit": "create_new"}
        if "x_sync_dir_suffix" in wandb.Settings.model_fields:  # or two starts in one second share their files
            options["x_sync_dir_suffix"] = new_id()
        settings = wandb.Settings(**options, init_timeout=SECONDS_TO_START)
        with self.cursor.uploading():
            self._run = wandb.init(
                project=self._project,
                name=self._name or event.directory.absolute().name,
                id=self.cursor.id,
                dir=str(event.directory.absolute()),
                mode=self._mode,
                resume="allow" if self.cursor.known else None,
                settings=settings,
            )
        facts = {"environment": event.environment} | ({} if event.commit is None else {"commit": event.commit})
        self._run.config.update({**flat(encode(event.config)), **encode(facts)}, allow_val_change=True)
        self._run.define_metric("*", step_metric="step")
        self._step = -1

    def send_steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Log a row for each step."""
        names = [f"step/{event.split}/{name}" for name in values]
        columns = [column.tolist() for column in values.values()]
        rows = [self._row(step) for step in steps]
        with self.cursor.uploading():
            for row, step, *numbers in zip(rows, steps, *columns, strict=True):
                named = dict(zip(names, numbers, strict=True))
                self._run.log({**named, "epoch": event.epoch, "step": step}, step=row)

    def send_split(self, event: SplitEnded) -> None:
        """Log a row with its texts and pictures; the texts also go into the summary."""
        numbers = {f"{event.split}/{name}": x for name, x in event.values.items() if not isinstance(x, str)}
        texts = {f"{event.split}/{name}": x for name, x in event.values.items() if isinstance(x, str)}
        seen = {f"text/{key}": _text(text) for key, text in texts.items()}
        seen |= {f"picture/{event.split}/{name}": _picture(draw()) for name, draw in event.pictures.items()}
        row = self._row(event.step)
        with self.cursor.uploading():
            self._run.log({**numbers, **seen, "epoch": event.epoch, "step": event.step}, step=row)
            self._run.summary.update(texts)

    def send_samples(self, event: SamplesLogged) -> None:
        """Log a row with texts, pictures and histograms."""
        seen = {f"custom/{name}": _sample(value) for name, value in event.values.items()}
        row = self._row(event.step)
        with self.cursor.uploading():
            self._run.log({**seen, "epoch": event.epoch, "step": event.step}, step=row)

    def message(self, event: Message) -> None:
        """Add a line to the run's log, if this version of wandb has one."""
        if hasattr(self._run, "write_logs"):
            self._run.write_logs(f"{logging.getLevelName(event.level)}  {event.text}")

    def ended(self, event: RunEnded) -> None:
        """Finish the run with its summary."""
        best = {
            f"best/{key}": metric["best"]["value"] for key, metric in event.summary["metrics"].items() if metric["best"]
        }
        self._run.summary.update(encode({**best, "stopped_by": event.stopped_by, "seconds": event.seconds}))
        for name, path in checkpoints_to_keep(event, self._directory, self._log_model):
            self._keep_model(name, path)
        self._finish(0)

    def _keep_model(self, name: str, path: Path) -> None:
        import wandb

        artifact = wandb.Artifact(f"{self._run.id}-checkpoint", type="model", metadata={"name": name})
        artifact.add_dir(str(path))
        self._run.log_artifact(artifact, aliases=[name])

    def failed(self, event: RunFailed) -> None:
        """Finish the run with its error."""
        if self._run is not None:
            self._run.summary.update({"error": event.error})
            self._finish(1)

    def close(self) -> None:
        """Finish the run, if it is open."""
        self._finish(1)

    def _row(self, step: int) -> int:
        """Return the row of a step. wandb accepts rows only in ascending order, also across resumes: a late value, such
        as that of an interrupted validation, gets a later row and its own `step`.
        """
        if step != self._step:
            self._step, self.cursor.row = step, max(step, self.cursor.row + 1)
        return self.cursor.row

    def _finish(self, code: int) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=code)


def remove_run_files(directory: Path) -> None:
    """Remove wandb's files of the run in a directory, which `wandb.json` names, and its links to them. Keep those of
    other runs.
    """
    place = directory / "wandb"
    if place.is_symlink() or not place.is_dir():
        return
    try:
        run = UploadCursor(directory / FILE).id
    except LearnerError:  # without its id, no directory is known to be the run's
        return
    for path in list(place.iterdir()):
        match = STARTED.fullmatch(path.name)
        if match and match[2] == run and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    for path in list(place.iterdir()):
        if path.is_symlink() and (match := STARTED.fullmatch(os.readlink(path).partition("/")[0])) and match[2] == run:
            path.unlink()
    with contextlib.suppress(OSError):  # others are there
        place.rmdir()


def _text(text: str) -> Any:
    """Return the text unchanged, whatever it contains."""
    import wandb

    return wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)


def _sample(value: Sample) -> Any:
    import wandb

    if isinstance(value, Histogram):
        return wandb.Histogram(np_histogram=(value.counts, value.edges))
    return _text(value) if isinstance(value, str) else _picture(value.pixels)


def _picture(picture: np.ndarray) -> Any:
    """Return a picture with exact pixels: arrays would be rescaled if all their values are small."""
    import wandb
    from PIL import Image

    return wandb.Image(Image.fromarray(pixels(picture)))
