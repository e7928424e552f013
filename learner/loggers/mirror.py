"""Listener that keeps a copy of the run in an object store."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from learner.errors import LearnerError
from learner.events import Event, Listener, RunStarted, Saved
from learner.runs.population import NAME as POPULATION
from learner.runs.remote import RemoteRun
from learner.util.number_checks import is_finite
from learner.util.retries import Retries
from learner.util.user_warnings import LearnerWarning, warn


class RunMirror(Listener):
    """Keep a copy of the run's directory in an object store: logs, config and checkpoints. It is updated with each
    checkpoint and at the end. `learner fetch URL DIR` copies it to any machine, where `learner resume DIR` continues
    the run.

    The run writes to its own disk, and a background thread makes the copy. Checkpoints that the run removes are removed
    from the copy once newer ones are in it. A failed copy is retried with growing pauses, and then at the next
    checkpoint, with a warning.

    Args:
      url: `s3://bucket/runs/digits`, `gs://...` or another address that fsspec opens, or a path. Credentials are the
        ones that the store's own tools find.
      seconds: the time that the run waits at its end for the last copy.
      retries: the number of immediate retries of a failed copy; 6 retries take a minute.
      sleep: the function that waits between retries.

    Raises:
      LearnerError: the package for such addresses is not installed, or the address cannot be written.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        seconds: float = 600.0,
        retries: int = 6,
        sleep: Callable[[float], None] = time.sleep,
    ):
        if not (is_finite(seconds) and seconds > 0):
            raise LearnerError(
                f"seconds of RunMirror is {seconds!r}; it needs a number greater than 0", code="logger-mirror-seconds"
            )
        self.seconds_to_close = float(seconds)
        self._retries = Retries(retries, sleep=sleep)
        self._remote = RemoteRun(url)
        self.place = str(self._remote.url)
        self._remote.refuse_unwritable()
        self._directory: Path | None = None
        self._warned = False

    def on_event(self, event: Event) -> None:
        """Copy new files after a checkpoint."""
        if isinstance(event, RunStarted):
            if (event.directory.parent / POPULATION).exists():
                raise LearnerError(
                    "RunMirror copies one run, and this is a member of a population", code="logger-mirror-population"
                )
            self._retry(lambda: self._remote.refuse_another(event.directory, event.resumed))
            self._directory = event.directory
        if isinstance(event, Saved):
            self._warn_of_another_place(event.path)
            try:
                self._copy()
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                _warn(f"the copy to {self._remote.url} failed and is tried again at the next checkpoint: {text}")

    def _warn_of_another_place(self, checkpoint: Path) -> None:
        """Warn once about checkpoints outside the run's directory, which are not copied."""
        if self._directory is None or self._warned or Path(checkpoint).is_relative_to(self._directory):
            return
        self._warned = True
        place = os.path.dirname(checkpoint)  # of an address, a `pathlib.Path` would drop a slash
        _warn(
            f"{self._remote.url} gets no checkpoints, as they are in {place}, outside of the run's directory: leave "
            "`directory` of the checkpointer out"
        )

    def close(self) -> None:
        """Make the last copy, with the end of the log."""
        self._copy()

    def _copy(self) -> None:
        if (directory := self._directory) is not None:
            self._retry(lambda: self._remote.upload(directory))

    def _retry(self, what: Callable[[], None]) -> None:
        self._retries.call(what, lambda error: not isinstance(error, LearnerError))


def _warn(text: str) -> None:
    """Warn without raising, even if a filter makes warnings errors: an error would detach the mirror."""
    with contextlib.suppress(LearnerWarning):
        warn(text)
