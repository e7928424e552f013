"""The log, the files and the listeners of a run: opened first, closed last, even if the run fails in between."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from learner.checkpoint.save_queue import SaveQueue
from learner.errors import LearnerError, ProcessError
from learner.events import Compiling, Listener, ListenerThread, Message, RunFailed
from learner.loggers.application import close_application_log, open_application_log
from learner.runs.journal import read_journal
from learner.runs.layout import MARK
from learner.runs.metric_logs import NoFiles, RunFiles, RunFilesWithoutMetrics
from learner.training.files.directory import holds_run
from learner.training.options import Options
from learner.training.progress.position import Position
from learner.util.user_warnings import LearnerWarning, Line, is_ignored, users_line, warn

Files = RunFiles | NoFiles


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The outputs of a run.

    Attributes:
      log: the application log.
      files: the journal and the metric files; only in the first process.
      listeners: the renderer and the loggers, each on a separate thread.
      saves: the saves that are not written yet.
      options: the options of the run.
      line: the user's line that trains.
      members: the outputs of the members of a population.
    """

    log: logging.Logger
    files: Files
    listeners: list[ListenerThread]
    saves: SaveQueue
    options: Options
    line: Line
    members: "list[Outputs]" = dataclasses.field(default_factory=list)

    def report_signal(self, name: str, saves: bool) -> None:
        """Notify the listeners that a signal stops the run. Any thread may call it."""
        saving = ", saving a checkpoint" if saves else ""
        self._show(f"{name}: stopping after the steps in flight{saving}; again to end now", logging.INFO)

    def report_compilation(self, number: int, total: int) -> None:
        """Notify the listeners of the program about to be compiled; see `Compiling`. Any thread may call it."""
        for listener in self.listeners:
            listener.put(Compiling(time.time(), number, total))

    def info(self, text: str) -> None:
        """Write a text to the log. Any thread may call it."""
        self.log.info("%s", text)

    def notify(self, text: str) -> None:
        """Write a text to the log, and show it to people. Any thread may call it."""
        self.info(text)
        self._show(text, logging.INFO)

    def warn(self, text: str) -> None:
        """Write a warning to the log, and send it to the listeners; see `_show_warning`. Any thread may call it.

        Raises:
          LearnerWarning: a filter of Python for this category makes it an error.
        """
        self.log.warning(text)
        if not is_ignored(text):
            self._show_warning(text)

    def report_problem(self, text: str) -> None:
        """Warn of a problem of the outputs or of the machine. Unlike `warn` it never raises: nobody would see the error
        of a thread of theirs, which would end.
        """
        self.log.warning(text)
        self._show_warning(text)

    def report_stuck(self, text: str) -> None:
        """Warn of a run that does not move, as `report_problem` does, but not by `warnings`: the stuck thread may hold
        the lock of standard error.
        """
        self.log.warning(text)
        self._show(text, logging.WARNING)

    def _show_warning(self, text: str) -> None:
        """Send a warning to the listeners. Without a renderer to show it, the first process issues it by `warnings`."""
        self._show(text, logging.WARNING)
        if self.options.renderer is None and isinstance(self.files, RunFiles):
            # Suppressed: with filters that make all warnings errors, those of threads of the run would end it.
            with contextlib.suppress(LearnerWarning):
                warn(text, self.line)

    def _show(self, text: str, level: int) -> None:
        for listener in self.listeners:
            listener.put(Message(time.time(), level, text))


@contextlib.contextmanager
def open_outputs(options: Options, process: int, position: Position) -> Iterator[Outputs]:
    """Open the outputs of a run. An error in the block is written to all of them, with the current position."""
    first = process == 0
    log = open_application_log(options.directory, options.application_logger, process)
    saves = SaveQueue()
    line = users_line()
    outputs = Outputs(log, _files(options, saves) if first else NoFiles(), [], saves, options, line)
    with contextlib.ExitStack() as stack:
        # Closed in reverse: listeners first, which may still warn; then the files; the log last.
        stack.callback(close_application_log, log)
        for member in options.population.members if options.population else ():
            own = member.options(options)
            # Members share the log and the queue of saves, as each checkpoint holds all members.
            outputs.members.append(Outputs(log, _files(own, saves), [], saves, own, line))
        every = [outputs, *outputs.members] if first else [outputs]
        for each in every:
            stack.push(_suppressing_beside_an_error(each.files.close))
        if first:
            for each in every:
                each.listeners.extend(
                    ListenerThread(x, outputs.report_problem, outputs.info) for x in _listeners(each.options)
                )
        stack.push(closing(lambda seconds: _close([x for each in every for x in each.listeners], seconds)))
        try:
            yield outputs
        except BaseException as error:
            log.error("failed: %r", error, exc_info=error)
            for each in every:
                # The disk may have failed, and the error of the block is the one to raise.
                with contextlib.suppress(Exception):
                    if _records_errors(each):
                        each.files.journal("error", epoch=position.epoch, step=position.step, error=repr(error))
                for listener in each.listeners:
                    listener.put(RunFailed(time.time(), position.epoch, position.step, repr(error)))
            raise


def _records_errors(outputs: Outputs) -> bool:
    """Return True if an error belongs into the journal."""
    if outputs.files.has_ended:  # a member of a population may have ended while others trained
        return False
    # An attempt that fails before its line `start`, such as one with damaged or missing logs, has not changed a run
    # that had started before: its status and its time stay. The log has the error.
    if outputs.files.has_started:
        return True
    directory = outputs.options.directory
    if not (directory / MARK).exists():
        return not holds_run(directory)
    return all(entry.get("event") != "start" for _, entry in read_journal(directory))


def _files(options: Options, saves: SaveQueue) -> RunFiles:
    # The run of a population has only means of splits: means of steps would cost as much as another member.
    kind = RunFiles if options.metric_files and options.population is None else RunFilesWithoutMetrics
    # On a full disk the files wait for saves, but only for those that the reporter has answered: for the others, the
    # saver waits for the reporter.
    return kind(options.directory, time.time, saves.wait_for_answered)


def closing(close: Callable[[float | None], None]) -> Callable[..., None]:
    """Return an exit callback that closes a part without a timeout. After a second signal, or if another process has
    failed, a part that hangs is abandoned after a second.
    """

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        close(1.0 if isinstance(error, KeyboardInterrupt | SystemExit | ProcessError) else None)

    return leave


def _suppressing_beside_an_error(close: Callable[[], None]) -> Callable[..., None]:
    """Return an exit callback whose own error is suppressed if the block has raised an error, which is the cause."""

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        with contextlib.suppress(LearnerError, OSError) if error is not None else contextlib.nullcontext():
            close()

    return leave


def _listeners(options: Options) -> list[Listener]:
    renderer = options.renderer
    if renderer == "auto":
        from learner.renderers import default_renderer

        renderer = default_renderer()
    loggers = options.loggers if options.population is None else ()  # each member has its own
    return [*([renderer] if isinstance(renderer, Listener) else []), *loggers]


def _close(listeners: list[ListenerThread], seconds: float | None) -> None:
    """Close each listener within its time, the renderer last, so that it shows which listeners were abandoned."""
    began = time.monotonic()

    def left(listener: ListenerThread) -> float:
        until = began + (listener.seconds_to_close if seconds is None else seconds)
        return max(1.0, until - time.monotonic())

    try:
        _close_each(listeners, left, abandons=seconds is not None)
    except BaseException:
        # A signal: the others must not lose their last events because one of them hangs.
        for listener in listeners:
            listener.end()
        for listener in reversed(listeners):
            listener.close(1.0)
        raise


def _close_each(listeners: list[ListenerThread], left: Callable[[ListenerThread], float], abandons: bool) -> None:
    # Before any of them is ended: the warning about a listener that fails now is an event for all others.
    hanging = [listener for listener in listeners if not listener.flush(left(listener))]
    # All of them before the first wait, so that they close in parallel.
    for listener in listeners[1:]:
        listener.end()
    for listener in reversed(listeners):
        listener.close(0.0 if listener in hanging and abandons else left(listener))
