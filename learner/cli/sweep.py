"""`learner sweep`: a run for each combination of values, one after another in one process."""

import contextlib
import dataclasses
import gc
import json
import sys
import time
import warnings
from collections.abc import Sequence
from typing import TextIO

from learner.cli.configs.overrides import value_of
from learner.cli.configs.sweep_groups import SweepGroup
from learner.cli.sweeps.sweep_plan import SweepPlan, monitor_in, sweep_plan
from learner.cli.sweeps.sweep_report import Outcome, SweepReport, has_ended, longer_members, metric_of
from learner.cli.usage import sweep_parser
from learner.config.sweep_space import SweepMember
from learner.errors import NonFiniteError, OutOfMemoryError
from learner.events import Listener
from learner.runs.layout import read_summary
from learner.training.signals import TERMINATED, TERMINATING
from learner.training.watchdog import EXIT
from learner.util.stages import end_stages, note
from learner.util.text import count, duration, first_line, printable, short
from learner.util.user_warnings import LearnerWarning

INTERRUPTED = {"ctrl-c": 130, **dict.fromkeys(TERMINATING, TERMINATED), "watchdog": EXIT}
"""The exit code for each reason for which a run ends the sweep."""


def sweep(words: Sequence[str]) -> int:
    """`learner sweep CONFIG... [--KEY=VALUES ...]`."""
    line = sweep_parser().read(words)
    plan = sweep_plan(line)
    groups = plan.groups if line.member is None else [plan.group_of(value_of(line.member))]
    plan.open()
    end_stages()
    for reason in plan.notes:
        note(f"members train one after another: {printable(reason)}")
    progress = _Progress(plan, sys.stderr if line.json else sys.stdout)
    for group in groups:
        if has_ended(plan.directory, group):
            progress.show(group, "kept")
            continue
        began = time.monotonic()
        code, failure = _fit(plan, group, progress.status(group))
        if code:
            note("interrupted; the same command resumes the sweep")
            return code
        progress.show(group, duration(time.monotonic() - began), failure)
    return _finish(plan, progress, as_json=line.json, as_table=line.member is None)


def _fit(plan: SweepPlan, group: SweepGroup, renderer: Listener | None) -> tuple[int, str]:
    """Train a group. Return an exit code if the sweep has to end, and the reason if the group failed.

    A loss that is not finite and a lack of memory are caused by the values, so the sweep continues; any other error
    ends it.
    """
    try:
        with warnings.catch_warnings():
            # A member without a renderer would issue its own, which most members share: its experiment.log has them.
            warnings.simplefilter("ignore", LearnerWarning)
            stopped_by = plan.learner(group, renderer=renderer).fit().stopped_by
    except KeyboardInterrupt:
        return INTERRUPTED["ctrl-c"], ""
    except SystemExit as ended:
        if ended.code != TERMINATED:
            raise
        return TERMINATED, ""
    except (NonFiniteError, OutOfMemoryError) as error:
        return 0, first_line(error)
    except Exception as error:
        error.add_note(f"while training {_name_of(group)}")
        raise
    finally:
        gc.collect()  # the next member needs the memory held by reference cycles
    return INTERRUPTED.get(stopped_by.partition(":")[0], 0), ""


def _name_of(group: SweepGroup) -> str:
    return f"{count(len(group.members), 'member')} together" if group.traced else group.members[0].name


class _Progress:
    """The lines about members that have ended, and their outcomes.

    Attributes:
      outcomes: the outcomes of the members so far.
      metric: the key of the metric, and True if higher is better; None until a member has ended.
    """

    def __init__(self, plan: SweepPlan, stream: TextIO):
        self._plan, self._stream = plan, stream
        self.outcomes: list[Outcome] = []
        self.metric: tuple[str, bool] | None = None

    def status(self, group: SweepGroup) -> Listener | None:
        """Return the renderer of a group's training on a terminal, or None elsewhere."""
        if not self._stream.isatty():
            return None
        from rich.console import Console

        from learner.cli.sweeps.sweep_status import SweepStatus

        return SweepStatus(f"{self._place(group.members[0])}  {_name_of(group)}", Console(file=self._stream))

    def _place(self, member: SweepMember) -> str:
        members = self._plan.members
        return f"{members.index(member) + 1:{len(str(len(members)))}}/{len(members)}"

    def show(self, group: SweepGroup, time_or_kept: str, failure: str = "") -> None:
        """Print the lines of the members of a group that has ended."""
        for member in group.members:
            outcome = Outcome(member, read_summary(self._plan.directory / member.name))
            if failure and not (group.traced and outcome.stopped_by):  # members of a population end individually
                outcome = dataclasses.replace(outcome, summary=None, failure=failure)
            self.outcomes.append(outcome)
            self._show(outcome, time_or_kept)

    def _show(self, outcome: Outcome, time_or_kept: str) -> None:
        if self.metric is None and outcome.summary is not None:
            self.metric = metric_of(outcome, self._plan.metric, *monitor_in(self._plan.content))
        words = [outcome.failure and f"failed: {outcome.failure}"]
        if self.metric is not None and not outcome.failure:
            value, epoch = outcome.best(self.metric[0])
            words = [f"{self.metric[0]} {short(value)}" + (f" at epoch {epoch}" if epoch is not None else "")]
            words.append(outcome.stopped_by)
        end_stages()
        how = ", ".join([*filter(None, words), time_or_kept])
        text = f"{self._place(outcome.member)}  {outcome.member.name}  {how}"
        with contextlib.suppress(OSError):  # a sweep continues without its output; printing the results reports it
            print(printable(text), file=self._stream, flush=True)


def _finish(plan: SweepPlan, progress: _Progress, *, as_json: bool, as_table: bool) -> int:
    """Print the results, and return the exit code: 1 if all members have failed."""
    if progress.metric is None:
        note(f"{count(len(progress.outcomes), 'member')} failed, which is all of them")
        return 1
    report = SweepReport(*progress.metric, progress.outcomes)
    best = report.best()
    command = None if best is None or plan.takes_over else plan.command(best[1].member)
    if as_json:
        print(json.dumps(report.to_json(plan.directory, command), indent=2, allow_nan=False))
    elif as_table:
        lines = [*report.lines(plan.directory, command), *longer_members(plan.directory, plan.groups)]
        print("", *map(printable, lines), sep="\n")
    return 0
