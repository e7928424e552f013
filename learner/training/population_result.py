"""The result of a population: the results of its members, and statistics over them."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from learner.errors import LearnerError, near
from learner.runs.flat_config import text_of
from learner.runs.history import History, Point, read_history
from learner.runs.layout import NONFINITE, read_summary
from learner.runs.spread import FEWEST, Spread, counts_text
from learner.steps.population import member_of
from learner.steps.train_state import TrainState
from learner.training.checkpoints.resume import finished_summary, too_few_epochs
from learner.training.definition import TrainingDefinition
from learner.training.evaluation import Evaluator
from learner.training.population import Member, Population
from learner.training.programs.executor import Runner
from learner.training.progress.restore import Restored
from learner.training.reporting.population_delivery import means_of
from learner.training.result import LearningResult, RunFunction, result_of
from learner.training.run import Run
from learner.training.run_plan import RunPlan
from learner.training.setup.dispatch_plan import make_runner
from learner.util.fragments import fragment, table
from learner.util.text import aligned, join_names, short
from learner.util.user_warnings import warn


class MemberResult(LearningResult[Any]):
    """The outcome of one member of a population; see `LearningResult`.

    Attributes:
      index: its position in the population.
      name: the name of its directory.
      directory: the directory of its run.
      values: its values by name: `seed`, `lr`, keyword arguments of the optimizer.
    """

    def __init__(
        self,
        definition: TrainingDefinition,
        member: Member,
        state: TrainState,
        history: History,
        summary: Mapping[str, Any],
    ):
        alone = definition.on_one_device()
        state = alone.strategy.place(state)  # the state of a wave is on the host
        adapter = definition.step.adapter.with_key(jax.random.key(member.seed))
        model = dataclasses.replace(definition.step, adapter=adapter).eval_model(state)
        super().__init__(model, history, str(summary["stopped_by"]), summary, _no_best_model, _no_best_model)
        self.index, self.name, self.directory = member.index, member.name, definition.options.directory / member.name
        self.values = member.all_values
        self._evaluator = Evaluator(alone)
        self._evaluator.runner = make_runner(alone.step, state, alone.strategy)

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Return the metrics of the member's valid step over all of `data`, by name; see `Learner.evaluate`."""
        return self._evaluator.evaluate(data)

    def predict(self, data: Any) -> Iterator[Any]:
        """Yield the outputs of the member's valid step on the host; see `Learner.predict`."""
        return self._evaluator.predict(data)

    def best(self, key: str) -> Point | None:
        """Return the best value of a metric, by its own direction, or None if it has no value.

        Raises:
          LearnerError: there is no such metric, or it has no direction.
        """
        return self.history.best(key, _direction(self.summary["metrics"], key))

    def __repr__(self) -> str:
        return f"MemberResult({self.name!r}, stopped_by={self.stopped_by!r})"


def _direction(metrics: Mapping[str, Any], key: str) -> bool:
    """Return True if a higher value of a metric is better. `metrics`: the metrics of a summary."""
    if key not in metrics:
        raise LearnerError(
            f"there is no metric {key!r}: {near(key, list(metrics))}", code="population-metric-unknown", key=key
        )
    higher = metrics[key]["higher_is_better"]
    if higher is None:
        directed = join_names([k for k in metrics if metrics[k]["higher_is_better"] is not None], 8)
        raise LearnerError(
            f"no value of {key} is better than another; there are {directed}",
            code="population-metric-unknown",
            key=key,
        )
    return bool(higher)


def _no_best_model() -> Any:
    raise LearnerError(
        "a member of a population keeps no model of its best epoch; result[i].model is the one after the last step",
        code="learner-best-not-kept",
    )


def _cell(value: Any) -> str:
    """Return a value as text. In a population, values are numbers; in a sweep, any value of a config."""
    if isinstance(value, float):
        return f"{value:g}"
    # Objects of one class may differ in their last argument only.
    return text_of(value) if isinstance(value, Mapping) else short(text_of(value))


class PopulationSummary(Sequence[Spread]):
    """The statistics of a metric over the members of a population, with a row for each combination of the other values.
    `print` shows them as a table.
    """

    def __init__(self, key: str, over: str, rows: Sequence[Spread]):
        self.key, self.over, self._rows = key, over, list(rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        names = list(self._rows[0].values)
        shows = any(row.count >= FEWEST for row in self._rows)
        table = [[*names, "members", self.key, "std", *["95 % interval"] * shows]]
        for row in self._rows:
            interval = f"{short(row.low)} to {short(row.high)}" if row.count >= FEWEST else ""
            std = "" if math.isnan(row.std) else short(row.std)
            mean = short(row.mean) if row.count else "-"
            members = counts_text(row.count, row.total)
            table.append([*(_cell(row.values[n]) for n in names), members, mean, std, *[interval] * shows])
        return "\n".join(aligned(table))


class PopulationResult(LearningResult[Any]):
    """The outcome of a population: `result[3]` is the result of a member, and iteration yields all in order.

    Attributes:
      history: the means over the members, epoch by epoch.
      stopped_by: why the population ended. A member may have ended earlier, for another reason.
    """

    def __init__(
        self,
        population: Population,
        history: History,
        stopped_by: str,
        of_members: Sequence[tuple[History, Mapping[str, Any]]],
        make_member: Callable[[int], MemberResult],
    ):
        self._population, self._of_members = population, of_members
        self._member = RunFunction(functools.cache(make_member))  # the cache lives as long as the result
        self.history, self.stopped_by = history, stopped_by

    @classmethod
    def of_waves(cls, population: Population, waves: Sequence["PopulationResult"]) -> "PopulationResult":
        """Return the result of a population whose members trained in these waves. It leaves out members that did not
        train.
        """
        places = [(wave, index) for wave in waves for index in range(len(wave))]
        of_members = [pair for wave in waves for pair in wave._of_members]

        def make_member(index: int) -> MemberResult:
            wave, place = places[index]
            member = wave[place]
            member.index = index
            return member

        trained = dataclasses.replace(population, members=population.members[: len(places)])
        history = mean_history([history for history, _ in of_members])
        return cls(trained, history, waves[-1].stopped_by, of_members, make_member)

    @property
    def model(self) -> Any:
        """Raise `LearnerError`: each member has a model."""
        raise LearnerError("a population has a model for each member: result[0].model", code="population-one-model")

    @property
    def best_model(self) -> Any:
        """Raise `LearnerError`: each member has a model."""
        raise LearnerError(
            "a population has a model for each member: result.best('valid/Loss').model", code="population-one-model"
        )

    def __len__(self) -> int:
        return len(self._population)

    def __iter__(self) -> Iterator[MemberResult]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> MemberResult:
        """Return the result of a member. Its model is built at the first access."""
        member: MemberResult = self._member(range(len(self))[operator.index(index)])
        return member

    def best(self, key: str) -> MemberResult:
        """Return the member with the best value of a metric in any epoch, by the metric's own direction. Members that
        ended because a loss or gradient was not finite come last, as do those whose value is not finite.

        Args:
          key: the key of the metric, such as `valid/Accuracy`.

        Raises:
          LearnerError: there is no such metric, or it has no direction.
        """
        higher = self._direction(key)
        numbers = self._best_values(key)

        def rank(index: int) -> tuple[bool, bool, float]:
            number = numbers[index]
            return self._has_diverged(index), not math.isfinite(number), -number if higher else number

        return self[min(range(len(self)), key=rank)]

    def summary(self, key: str, over: str = "seed") -> PopulationSummary:  # type: ignore[override]
        """Return the mean, standard deviation and 95 % interval of a metric's best values over members that differ only
        in one value. Members that ended because a loss or gradient was not finite are missing in their row.

        Args:
          key: the key of the metric, such as `valid/Accuracy`.
          over: the name of the value in which the members of a row differ.

        Raises:
          LearnerError: there is no such metric, or members have no such value.
        """
        self._direction(key)
        names = self._names()
        if over not in names:
            raise LearnerError(
                f"the members have no value {over!r}: {near(over, names)}", code="population-summary-over", over=over
            )
        groups: dict[tuple[float, ...], list[float]] = {}
        others = [name for name in names if name != over]
        for index, (member, number) in enumerate(zip(self._population.members, self._best_values(key), strict=True)):
            values = groups.setdefault(tuple(member.all_values[name] for name in others), [])
            values.append(math.nan if self._has_diverged(index) else number)
        rows = [Spread.of(dict(zip(others, group, strict=True)), values) for group, values in groups.items()]
        return PopulationSummary(key, over, rows)

    def table(self, *keys: str) -> str:
        """Return a table with a row for each member: its values, and the best value of each metric with its epoch.

        Args:
          keys: the keys of the metrics; default: the validation metrics, or without validation the training metrics.
        """
        return "\n".join(aligned(self._rows(*keys)))

    def _rows(self, *keys: str) -> list[list[str]]:
        every = {key: m["higher_is_better"] for key, m in self._of_members[0][1]["metrics"].items()}
        shown = [key for key, higher in every.items() if higher is not None]
        keys = keys or tuple([key for key in shown if key.startswith("valid")] or shown)
        names = self._names()
        rows = [["member", *names, *(word for key in keys for word in (key, "epoch")), "stopped by"]]
        for index, member in enumerate(self._population.members):
            history, summary = self._of_members[index]
            cells = []
            for key in keys:
                point = history.best(key, self._direction(key))
                cells += ["", ""] if point is None else [short(point.value), str(point.epoch)]
            values = [_cell(member.all_values[name]) for name in names]
            rows.append([f"{index:03d}", *values, *cells, str(summary["stopped_by"])])
        return rows

    def _names(self) -> list[str]:
        """Return the names of the members' values, always including the seed."""
        return list(self._population.members[0].all_values)

    def _best_values(self, key: str) -> list[float]:
        higher = self._direction(key)
        points = [history.best(key, higher) for history, _ in self._of_members]
        return [math.nan if point is None else float(point.value) for point in points]

    def _has_diverged(self, index: int) -> bool:
        return str(self._of_members[index][1]["stopped_by"]).startswith(NONFINITE)

    def _direction(self, key: str) -> bool:
        return _direction(self._of_members[0][1]["metrics"], key)

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        return fragment(table(head, rows), self.history.html())

    def __repr__(self) -> str:
        return f"PopulationResult(members={len(self)}, stopped_by={self.stopped_by!r})"


def run_result(definition: TrainingDefinition, run: Run) -> LearningResult[Any]:
    """Return the result of a run that has ended."""
    reporter, population = run.reporter, definition.options.population
    members = population.members if population else ()
    of_members = [(reporter.history_of(member.index), reporter.summary_of(member.index)) for member in members]
    return _result(definition, run.runner, reporter.history, reporter.summary_of(None), of_members)


def finished_result(plan: RunPlan, restored: Restored) -> tuple[Runner, LearningResult[Any]] | None:
    """Return the programs and the result of a run that has nothing left to train, or None. Nothing is written."""
    summary = finished_summary(plan, restored)
    if summary is None:
        return None
    directory, population = plan.options.directory, plan.options.population
    places = [directory / member.name for member in (population.members if population else ())]
    of_members = [(read_history(place), read_summary(place)) for place in places]
    if any(summary_of is None for _, summary_of in of_members):
        return None
    for text in too_few_epochs(plan.options, restored.position):
        warn(text)
    runner = make_runner(plan.step, restored.state, plan.strategy)
    return runner, _result(plan.definition, runner, read_history(directory), summary, of_members)


def _result(
    definition: TrainingDefinition,
    runner: Runner,
    history: History,
    summary: Mapping[str, Any],
    of_members: Sequence[tuple[History, Any]],
) -> LearningResult[Any]:
    options = definition.options
    if options.population is None:
        return result_of(definition, runner, history, summary)
    state, members = runner.copied_state(), options.population.members
    if options.population.wave is not None:
        state = jax.device_get(state)  # the next wave needs the memory of the device

    def make_member(index: int) -> MemberResult:
        return MemberResult(definition, members[index], member_of(state, index), *of_members[index])

    return PopulationResult(options.population, history, str(summary["stopped_by"]), of_members, make_member)


def mean_history(histories: Sequence[History]) -> History:
    """Return the means over histories of values at the same epoch and step; see `means_of`.

    >>> one, other = History(), History()
    >>> one.record("train", 1, 45, {"Loss": 0.5})
    >>> other.record("train", 1, 45, {"Loss": 1.0})
    >>> mean_history([one, other])["train/Loss"]
    [0.75]
    """
    means = History()
    for key in dict.fromkeys(key for history in histories for key in history):
        split, name = key.split("/", 1)
        values: dict[tuple[int, int], list[dict[str, float | str]]] = {}
        for history in histories:
            for point in history.points(key) if key in history else ():
                values.setdefault((point.epoch, point.step), []).append({name: point.value})
        for (epoch, step), of_members in sorted(values.items()):
            means.record(split, epoch, step, means_of(of_members))
    return means
