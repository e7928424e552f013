"""The results of a sweep: each member, each configuration over its seeds and folds, and the best configuration."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.cli.configs.sweep_groups import SweepGroup
from learner.config.sweep_space import SweepMember
from learner.errors import LearnerError, near
from learner.runs.flat_config import text_of
from learner.runs.journal import read_journal
from learner.runs.layout import ENDS, read_summary
from learner.runs.spread import Spread
from learner.training.monitors import default_monitor
from learner.training.population_result import PopulationSummary
from learner.util.json_values import decode, encode
from learner.util.number_checks import is_int
from learner.util.text import count, join_names, short

SHOWN = 8  # names in a line
TRAINED = {"num_epochs": "epochs", "num_steps": "steps"}
"""The number in a summary to compare with an option of the config."""
REPEATED = ("seed", "vars.fold")
"""Keys in which the members of a configuration may differ."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a member.

    Attributes:
      member: the member of the sweep.
      summary: the summary of its run, or None.
      failure: the reason why it failed; empty if it did not. A member that failed has no metrics.
      code: the code of the error, if it failed.
      in_use: True if another process trains it.
      extended: True if its run was resumed with another number of epochs or steps.
    """

    member: SweepMember
    summary: Mapping[str, Any] | None
    failure: str = ""
    code: str = ""
    in_use: bool = False
    extended: bool = False

    @property
    def stopped_by(self) -> str:
        """The reason why the run stopped; empty if it has no summary."""
        return "" if self.summary is None else str(self.summary.get("stopped_by"))

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics in the summary, by key."""
        return {} if self.summary is None or self.failure else self.summary.get("metrics", {})

    def best(self, key: str) -> tuple[float, int | None]:
        """Return the best value of a metric and its epoch, or NaN and None."""
        point = (self.metrics.get(key) or {}).get("best")
        return (math.nan, None) if point is None else (float(decode(point["value"])), point["epoch"])


def has_ended(directory: Path, group: SweepGroup, content: Mapping[str, Any]) -> bool:
    """Return True if the group has nothing left to train. Members of a population may have ended earlier.

    Args:
      directory: the sweep directory.
      group: the group of members.
      content: the config of the group. If its `num_epochs` or `num_steps` is larger than the number at which the run
        ended, more is left to train.
    """
    summary = read_summary(directory / group.name) or {}
    reason = str(summary.get("stopped_by"))
    length, number = content.get(reason), summary.get(TRAINED.get(reason, ""))
    return reason.startswith(ENDS) and not (is_int(length) and is_int(number) and number < length)


def was_extended(directory: Path) -> bool:
    """Return True if the run was resumed with another `num_epochs` or `num_steps` than before."""
    lengths: set[str] = set()
    for _, entry in read_journal(directory):
        if entry.get("event") == "start":
            config = entry.get("config")
            length = repr([config.get(key) for key in TRAINED] if isinstance(config, Mapping) else None)
            lengths = {*(lengths if entry.get("resumed") else ()), length}
    return len(lengths) > 1


def longer_members(directory: Path, groups: Sequence[SweepGroup], content: Mapping[str, Any]) -> list[str]:
    """Return a line about the members of each population that were resumed alone, and so trained longer than the
    others, and one about separate members that trained longer than the sweep's `content` determines.
    """
    lines, longer = list[str](), dict[str, list[str]]()
    for group in groups:
        if not group.traced:
            summary, settings = read_summary(directory / group.name) or {}, {**content, **group.values}
            for option, unit in TRAINED.items():
                length, number = settings.get(option), summary.get(unit)
                if is_int(length) and is_int(number) and number > length:
                    longer.setdefault(count(length, unit.removesuffix("s")), []).append(
                        f"{group.name} ({number} {unit})"
                    )
            continue
        together = (read_summary(directory / group.name) or {}).get("steps", math.inf)
        steps = {member.name: (read_summary(directory / member.name) or {}).get("steps", 0) for member in group.members}
        if names := [f"{name} ({number} steps)" for name, number in steps.items() if number > together]:
            lines.append(f"resumed alone, after the {together} steps of the others: {', '.join(names)}")
    alone = [f"resumed alone, after the {length} of the sweep: {', '.join(names)}" for length, names in longer.items()]
    return lines + alone


def metric_of(
    outcome: Outcome, metric: str | None, monitor: str | None = None, mode: str | None = None
) -> tuple[str, bool]:
    """Return the key of the metric that ranks members, and True if higher is better.

    Args:
      outcome: the outcome of a member with a summary.
      metric: the metric that the user chose, or None.
      monitor: the monitor of the checkpoints, or None for the default.
      mode: the mode of that monitor, `min` or `max`, or None for the direction of the metric.

    Raises:
      LearnerError: the run does not have the metric, or the metric has no direction.
    """
    known = {key: each["higher_is_better"] for key, each in outcome.metrics.items()}
    splits = [key.partition("/")[0] for key in known if key.startswith("valid")]
    key = metric or monitor or default_monitor(splits)
    if mode is not None and key in known and key in (monitor, default_monitor(splits)):
        known[key] = mode == "max"
    if known.get(key) is None:
        directed = [each for each, higher in known.items() if higher is not None]
        problem = "has no direction" if key in known else "is not measured"
        raise LearnerError(f"the metric {key!r} {problem}: {near(key, directed)}", code="sweep-metric-unknown", key=key)
    return key, bool(known[key])


@dataclasses.dataclass(frozen=True)
class SweepReport:
    """The results of a sweep by one metric.

    Attributes:
      key: the key of the metric.
      higher: True if higher is better.
      outcomes: the outcomes of the members, in order.
    """

    key: str
    higher: bool
    outcomes: Sequence[Outcome]

    def configurations(self) -> list[tuple[Spread, list[Outcome]]]:
        """Return, for each configuration, the statistics of the best values over its members, which differ only in the
        seed and the fold, and these members; the best configuration first. Those that lack the value of a member come
        after the others, because the remaining members may be the lucky ones.
        """
        groups: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault(json.dumps(encode(_configuration(outcome))), []).append(outcome)
        spreads = [
            (Spread.of(_configuration(group[0]), [each.best(self.key)[0] for each in group]), group)
            for group in groups.values()
        ]
        return sorted(spreads, key=lambda pair: self._rank(pair[0].mean, pair[0].is_complete))

    def _rank(self, value: float, is_complete: bool = True) -> tuple[bool, bool, float]:
        is_finite = math.isfinite(value)
        return not is_finite, not is_complete, (-value if self.higher else value) if is_finite else 0.0

    def best(self) -> tuple[Spread, Outcome] | None:
        """Return the best configuration and its best member, or None if no member has a finite value."""
        spread, group = self.configurations()[0]
        if not spread.count:
            return None
        return spread, min(group, key=lambda outcome: self._rank(outcome.best(self.key)[0]))

    def lines(self, directory: Path, command: str | None) -> list[str]:
        """Return the table of the configurations, the best one, and the command that trains it alone, if there is
        one.
        """
        rows = [spread for spread, _ in self.configurations()]
        lines = [*repr(PopulationSummary(self.key, REPEATED[0], rows)).split("\n"), *self._notes(rows), ""]
        best = self.best()
        if best is None:
            return [*lines, f"no member has a finite value of {self.key}"]
        spread, outcome = best
        values = ", ".join(f"{key}={text_of(value)}" for key, value in spread.values.items())
        value, epoch = outcome.best(self.key)
        return [
            *lines,
            f"best configuration: {values or 'the only one'}",
            f"its best member: {directory / outcome.member.name}, {self.key} {short(value)} at epoch {epoch}",
            *([] if command is None else [f"by itself: {command}"]),
        ]

    def _notes(self, rows: Sequence[Spread]) -> list[str]:
        """Return lines about members without a value."""
        notes = member_notes(self.outcomes)
        others = [each for each in self.outcomes if not each.failure and not each.in_use]
        if missing := sum(not math.isfinite(each.best(self.key)[0]) for each in others):
            verb = "has" if missing == 1 else "have"
            notes.append(f"{count(missing, 'member')} {verb} no finite value of {self.key}")
        if len({row.is_complete for row in rows}) > 1:
            notes.append("configurations that lack the value of a member are ranked after the others")
        if extended := sum(each.extended for each in self.outcomes):
            verb = "was" if extended == 1 else "were"
            notes.append(
                f"{count(extended, 'member')} {verb} resumed from a shorter run: a schedule that depends on the length "
                "differs from that of one run"
            )
        return notes

    def to_json(self, directory: Path, command: str | None) -> dict[str, Any]:
        """Return all results as JSON."""
        best = self.best()
        content = {
            "metric": self.key,
            "higher_is_better": self.higher,
            "members": [self._member_json(directory, outcome) for outcome in self.outcomes],
            "configurations": [dataclasses.asdict(spread) for spread, _ in self.configurations()],
            "best": None if best is None else best[1].member.name,
            "command": command,
        }
        return dict(encode(content))

    def _member_json(self, directory: Path, outcome: Outcome) -> dict[str, Any]:
        value, epoch = outcome.best(self.key)
        return {
            "directory": directory / outcome.member.name,
            "values": outcome.member.values,
            "best": None if math.isnan(value) else value,
            "epoch": epoch,
            "steps": None if outcome.summary is None else outcome.summary.get("steps"),
            "stopped_by": outcome.stopped_by or None,
            "failure": outcome.failure or None,
            "in_use": outcome.in_use,
        }


def member_notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each kind of failure, with the whole message of its first member, and one about the members
    that other processes train.
    """
    kinds: dict[str, list[Outcome]] = {}
    for each in outcomes:
        if each.failure:
            kinds.setdefault(each.code, []).append(each)
    notes = [
        f"{count(len(group), 'member')} failed; {group[0].member.name}: {group[0].failure}" for group in kinds.values()
    ]
    if in_use := [each.member.name for each in outcomes if each.in_use]:
        members = f"{count(len(in_use), 'member')} {'is' if len(in_use) == 1 else 'are'}"
        notes.append(f"{members} in use by another process, and missing here: {join_names(in_use, SHOWN)}")
    return notes


def _configuration(outcome: Outcome) -> dict[str, Any]:
    return {key: value for key, value in outcome.member.values.items() if key not in REPEATED}
