"""Threads that supervise a run: the poller of request files in its directory, and the watchdog. They may call only
methods that any thread may call.
"""

import contextlib

from learner.runs.control_files import ControlFilePoller
from learner.training.files.run_outputs import Outputs
from learner.training.run import Run
from learner.training.watchdog import Watchdog


def start_supervision(run: Run, outputs: Outputs, first: bool, threads: contextlib.ExitStack) -> None:
    """Start the threads, which `threads` closes. `first`: True in the first process, whose directory users see."""
    options = run.options
    if first:
        poller = ControlFilePoller(options.directory, lambda what, who: _answer(run, what, who), outputs.report_problem)
        # Before the start, so that nothing can fail in between: closing a thread that was not started does nothing.
        threads.callback(poller.close)
        poller.start()
    if options.watchdog is not None:
        ended = lambda: run.timer.estimator.ended  # noqa: E731
        stop = run.stop.interrupt_once if options.watchdog_ends else None
        dog = Watchdog(options.watchdog, ended, lambda text, stacks: _report_stall(outputs, text, stacks), stop)
        threads.callback(dog.close)
        dog.start()


def _answer(run: Run, request: str, sender: str) -> None:
    """Answer a file that requests a stop or a checkpoint."""

    def notify(text: str) -> None:
        run.reporter.notify(f"{sender} {text}", log=True)

    if run.stop.is_ending:
        notify(f"asks the run to {request}, which is ending already")
    elif request == "stop":
        notify("asks the run to stop: it stops after the current step")
        run.stop.interrupt_once(f"asked by {sender}")
    elif run.saver is None:
        notify("asks for a checkpoint, but this run saves none")
    else:
        notify("asks for a checkpoint: it is saved after the current step")
        run.stop.request_save()


def _report_stall(outputs: Outputs, text: str, stacks: str) -> None:
    outputs.log.warning("%s; the stacks of all threads:\n%s", text, stacks)
    outputs.report_stuck(f"{text}; experiment.log has the stack of each thread")
