"""The application log of a run, `experiment.log`: lines with the local time and its offset from UTC."""

import contextlib
import logging
import sys
from pathlib import Path

from learner.errors import LearnerError
from learner.runs.appended import refuse_special
from learner.util.urls import without_credentials


def open_application_log(directory: Path, setting: logging.Logger | bool | None, process: int = 0) -> logging.Logger:
    """Return the logger of one run.

    Args:
      directory: the run directory, which is created if necessary.
      setting: `True` to append to `experiment.log` in the directory; `None` for no log; or a logger, which is used
        unchanged.
      process: the index of this process; all but the first write `experiment-<process>.log`.

    Returns:
      A logger of the standard library. A logger created here does not propagate to other loggers.

    Raises:
      LearnerError: `setting` is invalid, or the file is a link.

    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> log = open_application_log(directory, True)
    >>> log.info("10 epochs")
    >>> close_application_log(log)
    >>> (directory / "experiment.log").read_text()[24:]
    ' INFO  10 epochs\\n'
    """
    if isinstance(setting, logging.Logger):
        return setting
    if setting is not None and setting is not True:
        raise LearnerError(
            f"application_logger got {setting!r}; it needs True, None or a logging.Logger",
            code="logger-application-type",
        )
    # Not from getLogger: the registry of the standard library keeps every logger until the process ends.
    logger = logging.Logger("learner.run")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    name = f"experiment-{process}.log" if process else "experiment.log"
    logger.addHandler(_handler(Path(directory) / name) if setting else logging.NullHandler())
    return logger


def close_application_log(logger: logging.Logger) -> None:
    """Close the file that `open_application_log` opened; a user's own logger is left unchanged."""
    for handler in [attached for attached in logger.handlers if isinstance(attached, _RunHandler)]:
        logger.removeHandler(handler)
        handler.close()


class _RunHandler(logging.FileHandler):
    """A handler that `open_application_log` opened."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (a name of logging)
        """Print nothing if the disk is full or gone: the run raises its own error."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file; its last lines are lost if the disk is full."""
        with contextlib.suppress(OSError):
            super().close()


class _Formatter(logging.Formatter):
    """A formatter of lines and tracebacks. Errors of object stores contain addresses that let anybody upload."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record without text that may be secret."""
        return without_credentials(super().format(record))


def _handler(path: Path) -> logging.Handler:
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_special(path)
    handler = _RunHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)-5s %(message)s", "%Y-%m-%d %H:%M:%S%z"))
    return handler
