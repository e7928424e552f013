"""`learner sweep`: a run for each combination of values, one after another in one process."""

import collections
import contextlib
import dataclasses
import errno
import gc
import json
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from traceback import format_exception
from typing import Any, NamedTuple, TextIO

from learner.cli.configs.overrides import value_of
from learner.cli.configs.sweep_groups import SweepGroup
from learner.cli.fit import EXIT_CODES
from learner.cli.sweeps.other_processes import journal_version, nonfinite_failure
from learner.cli.sweeps.sweep_plan import SweepPlan, monitor_in, sweep_plan
from learner.cli.sweeps.sweep_report import (
    Outcome,
    SweepReport,
    longer_members,
    member_notes,
    metric_of,
    was_extended,
)
from learner.cli.tracebacks import own_traceback
from learner.cli.usage import sweep_parser
from learner.config.sweep_space import SweepMember
from learner.errors import LearnerError, NonFiniteError, OutOfMemoryError, ProcessError
from learner.events import Listener
from learner.runs.flat_config import text_of
from learner.runs.layout import NONFINITE, read_summary
from learner.training.signals import TERMINATED
from learner.util.disk import FULL, OF_PROCESS, error_number
from learner.util.stages import end_stages, note
from learner.util.text import count, duration, first_sentence, printable, short
from learner.util.user_warnings import LearnerWarning

IN_USE, NOT_FINITE, USER = "run-in-use", "step-nonfinite", "user"
"""Codes of errors."""
OF_MACHINE = (*FULL, *OF_PROCESS, errno.EIO, errno.EROFS)
"""The numbers of errors that would meet the next members, too."""


class _End(NamedTuple):
    """The end of the training of a group.

    Attributes:
      exit_code: an exit code if the sweep was interrupted, else 0.
      failure: the error of the group as a text, or an empty one.
      code: the code of that error.
      is_fault: True if the error is neither a loss that is not finite nor a lack of memory.
      traceback: the traceback of an exception of the user's code that builds a member, or an empty text.
    """

    exit_code: int = 0
    failure: str = ""
    code: str = ""
    is_fault: bool = False
    traceback: str = ""


NO_ERROR = _End()


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
    if code := _train(plan, groups, progress, is_alone=line.member is not None):
        note("interrupted; the same command resumes the sweep")
        return code
    return _finish(plan, progress, as_json=line.json, as_table=line.member is None)


def _train(plan: SweepPlan, groups: Sequence[SweepGroup], progress: "_Progress", *, is_alone: bool) -> int:
    """Train the groups that have not ended. Return an exit code if the sweep was interrupted.

    Other processes may train groups of the same sweep. A group in use is tried again after the others.
    """
    versions = {group.name: journal_version(plan.directory / group.name) for group in groups}
    queue, postponed = collections.deque(groups), set[str]()
    while queue:
        group = queue.popleft()
        if plan.has_ended(group):
            progress.show(group, "kept")
            continue
        if failure := nonfinite_failure(plan.directory / group.name, since=versions[group.name]):
            progress.show(group, "trained by another process", _End(failure=failure, code=NOT_FINITE))
            continue
        began = time.monotonic()
        is_first = is_alone or not progress.outcomes
        end = _fit(plan, group, progress.status(group), is_alone=is_alone, is_first=is_first)
        if end.exit_code:
            return end.exit_code
        if end.code == IN_USE and group.name not in postponed:
            postponed.add(group.name)
            queue.append(group)
        else:
            progress.show(group, duration(time.monotonic() - began), end)
    return 0


def _fit(plan: SweepPlan, group: SweepGroup, renderer: Listener | None, *, is_alone: bool, is_first: bool) -> _End:
    """Train a group. Errors that do not concern this group alone, such as a full disk, are raised, as are exceptions of
    the user's code in the training. An exception of a model, an optimizer or data that is built is the group's failure.

    Args:
      plan: the plan of the sweep.
      group: the group to train.
      renderer: see `SweepPlan.learner`.
      is_alone: True if no other group is trained: its use by another process is an error.
      is_first: True for the first group, whose wrong values, types or shapes are probably those of all.
    """
    is_built = False
    try:
        with warnings.catch_warnings():
            # A member without a renderer would issue its own, which most members share: its experiment.log has them.
            warnings.simplefilter("ignore", LearnerWarning)
            learner = plan.learner(group, renderer=renderer)
            is_built = True
            stopped_by = learner.fit().stopped_by
    except KeyboardInterrupt:
        return _End(EXIT_CODES["ctrl-c"])
    except SystemExit as ended:
        if ended.code != TERMINATED:
            raise
        return _End(TERMINATED)
    except (NonFiniteError, OutOfMemoryError) as error:
        return _End(failure=_text_of(error), code=error.code)
    except Exception as error:
        if isinstance(error, LearnerError) and not _ends_sweep(error, is_alone, is_first):
            return _End(failure=_text_of(error), code=error.code, is_fault=error.code != IN_USE)
        error.add_note(f"while training {_name_of(group)}")
        if is_built or isinstance(error, LearnerError) or _is_of_machine(error):
            raise
        traceback = own_traceback(error) or "".join(format_exception(error))
        return _End(failure=_text_of(error), code=USER, is_fault=True, traceback=traceback)
    finally:
        learner = None
        gc.collect()  # the next member needs the memory held by reference cycles
    return _End(EXIT_CODES.get(stopped_by.partition(":")[0], 0))


def _text_of(error: Exception) -> str:
    """Return the type and the message of an error, which may have several lines, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _ends_sweep(error: LearnerError, is_alone: bool, is_first: bool) -> bool:
    if error.code == IN_USE:
        return is_alone
    return is_first or isinstance(error, ProcessError) or _is_of_machine(error)


def _is_of_machine(error: Exception) -> bool:
    return any(error_number(each) in OF_MACHINE for each in filter(None, (error, error.__cause__)))


def _name_of(group: SweepGroup) -> str:
    return f"{count(len(group.members), 'member')} together" if group.traced else _label(group.members[0])


def _label(member: SweepMember) -> str:
    """Return the name of a member, and its objects with their arguments, which the name lacks."""
    objects = [
        text_of(value) for value in member.values.values() if isinstance(value, Mapping) and "init_args" in value
    ]
    return "  ".join([member.name, *objects])


class _Progress:
    """The lines about members that have ended, and their outcomes.

    Attributes:
      outcomes: the outcomes of the members so far.
      metric: the key of the metric, and True if higher is better; None until a member has ended.
      has_faults: True if an error was neither a loss that is not finite nor a lack of memory.
      traceback: see `_End`, of the first member that cannot be built.
    """

    def __init__(self, plan: SweepPlan, stream: TextIO):
        self._plan, self._stream = plan, stream
        self.outcomes: list[Outcome] = []
        self.metric: tuple[str, bool] | None = None
        self.has_faults = False
        self.traceback = ""

    def status(self, group: SweepGroup) -> Listener | None:
        """Return the renderer of a group's training on a terminal, or None elsewhere."""
        if not self._stream.isatty():
            return None
        from rich.console import Console

        from learner.cli.sweeps.sweep_status import SweepStatus

        return SweepStatus(f"{self._position(group.members[0])}  {_name_of(group)}", Console(file=self._stream))

    def _position(self, member: SweepMember) -> str:
        members = self._plan.members
        return f"{members.index(member) + 1:{len(str(len(members)))}}/{len(members)}"

    def show(self, group: SweepGroup, time_or_kept: str, end: _End = NO_ERROR) -> None:
        """Print the lines of the members of a group that has ended."""
        self.has_faults |= end.is_fault
        self.traceback = self.traceback or end.traceback
        for member in group.members:
            outcome = self._outcome(member)
            if end.code == IN_USE:
                outcome = Outcome(member, None, in_use=True)
            elif end.failure and not (group.traced and outcome.stopped_by):  # members of a population end individually
                outcome = Outcome(member, None, end.failure, end.code)
            self.outcomes.append(outcome)
            self._show(outcome, time_or_kept)

    def _outcome(self, member: SweepMember) -> Outcome:
        directory = self._plan.directory / member.name
        summary = read_summary(directory)
        outcome = Outcome(member, summary, extended=summary is not None and was_extended(directory))
        # A separate run that diverges ends with an error; a member of a population, or with `stop`, with a summary.
        diverged = outcome.stopped_by.startswith(NONFINITE)
        return dataclasses.replace(outcome, failure=outcome.stopped_by, code=NOT_FINITE) if diverged else outcome

    def _show(self, outcome: Outcome, time_or_kept: str) -> None:
        if self.metric is None and outcome.summary is not None and not outcome.failure:
            self.metric = metric_of(outcome, self._plan.metric, *monitor_in(self._plan.content))
        words = [outcome.failure and f"failed: {first_sentence(outcome.failure).rstrip('.')}"]
        if outcome.in_use:
            words, time_or_kept = ["in use by another process"], ""
        elif self.metric is not None and not outcome.failure:
            value, epoch = outcome.best(self.metric[0])
            words = [f"{self.metric[0]} {short(value)}" + (f" at epoch {epoch}" if epoch is not None else "")]
            words.append(outcome.stopped_by)
        end_stages()
        how = ", ".join(filter(None, [*words, time_or_kept]))
        text = f"{self._position(outcome.member)}  {_label(outcome.member)}  {how}"
        with contextlib.suppress(OSError):  # a sweep continues without its output; printing the results reports it
            print(printable(text), file=self._stream, flush=True)


def _json_text(results: Mapping[str, Any]) -> str:
    return json.dumps(results, indent=2, allow_nan=False)


def _finish(plan: SweepPlan, progress: _Progress, *, as_json: bool, as_table: bool) -> int:
    """Print the results. Return the exit code: 1 if all members have failed, or any by a fault."""
    order = {member.name: number for number, member in enumerate(plan.members)}
    outcomes = sorted(progress.outcomes, key=lambda outcome: order[outcome.member.name])
    if progress.metric is None:
        for text in member_notes(outcomes):
            note(text)
        note("no member has a result")
        if progress.traceback:
            print(progress.traceback, file=sys.stderr)
        if as_json:
            content = SweepReport("", False, outcomes).to_json(plan.directory, None)
            print(_json_text({**content, "metric": None, "higher_is_better": None}))
        return 1 if any(each.failure for each in outcomes) else 0
    report = SweepReport(*progress.metric, outcomes)
    best = report.best()
    is_one_run = best is not None and not best[1].extended and not plan.takes_over
    command = plan.command(best[1].member) if best is not None and is_one_run else None
    if as_json:
        print(_json_text(report.to_json(plan.directory, command)))
    elif as_table:
        lines = [*report.lines(plan.directory, command), *longer_members(plan.directory, plan.groups, plan.content)]
        print("", *map(printable, lines), sep="\n")
    return int(progress.has_faults)
