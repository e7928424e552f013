"""Going on with a run: a checkpoint is read, compared with what the learner is now, and given back."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.checkpoint import CheckpointStore, DamagedError, Entry
from learner.checkpoint.items import Items, difference_text, from_items, root_key_of, to_items
from learner.errors import LearnerError, one_error
from learner.metrics.base import HostMetric, MetricBase
from learner.runs.history import History
from learner.runs.journal import LARGEST, is_value
from learner.runs.log_cutting import refuse_position
from learner.steps.state import TrainState
from learner.training.executor import MetricAccumulator, Runner
from learner.training.fingerprints import changes, metrics_in_flight, saved_fingerprint
from learner.training.options import Options
from learner.training.position import Position
from learner.training.preflight import Inputs
from learner.training.saving import platform_facts
from learner.training.stopping import MetricEarlyStopping
from learner.util.json_values import decode

ALLOWED = {
    "data": "the epoch goes on after as many batches as before, of the data as it is now",
    "metrics": "the metrics of the epoch under way begin anew, as others were in flight",
    "optimizer": "the optimizer begins with a new state",
    "logs": "the logs go on as they are, although parts of them are missing",
}
"""What a run that goes on may do where something is not as it was, if it is told to."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint gives back.

    Attributes:
      entry: which one.
      state: the train state.
      progress: everything else.
      metrics: the item `in_flight` of one that was made inside an epoch.
      notes: what people are to be told: newer checkpoints that are damaged, what is not as it was.
    """

    entry: Entry
    state: TrainState
    progress: Mapping[str, Any]
    metrics: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def position(self) -> Position:
        """Where the run was."""
        return Position.from_json(self.progress["position"])


# -- reading -----------------------------------------------------------------------------------------------------------

SCALE = "loss_scale."  # where the loss scale is in `extra`
Differing = Callable[[Mapping[str, Any]], list[str]]


def restore(
    store: CheckpointStore,
    entry: Entry,
    shapes: TrainState,
    filled: Callable[[TrainState], TrainState],
    allow: Collection[str] = (),
    differing: Differing = lambda progress: [],
) -> Restored:
    """Reads a checkpoint, each part of it to where it belongs; no other state is made for it.

    Args:
      store: where it is.
      entry: which one.
      shapes: of the state, with their shardings.
      filled: makes anew what a state lacks of `opt_state` and `extra`, where they are shapes.
      allow: of `ALLOWED`.
      differing: given `progress`, what else is not as it was and cannot be gone on with.

    Raises:
      DamagedError: it is not as it was saved.
      LearnerError: everything that differs, in one.
    """
    progress = store.progress(entry.step)
    refuse_malformed(progress, entry.step, str(store.path(entry.step)))
    needed = to_items(shapes)
    begun = dict(needed["optim"]["extra"])
    new = _take_as_saved(needed, store.shapes(entry.step, ["optim"]))
    differing_in = {item: store.differences(entry.step, {item: needed[item]}) for item in needed}
    notes = []
    if differing_in["optim"] and "optimizer" in allow:
        del needed["optim"], differing_in["optim"]
        notes.append(f"the optimizer is another one than before: {ALLOWED['optimizer']}")
    problems = [line for lines in differing_in.values() for line in lines]
    if problems:
        fresh = "" if differing_in["model"] else "; allow=('optimizer',) begins with a new state of the optimizer"
        problems = [difference_text(problems, f"the checkpoint {store.path(entry.step)}") + fresh]
    problems += differing(progress)
    if problems:
        raise one_error(problems, "the run cannot go on", code="resume-differs")
    items = store.restore(entry.step, needed)
    if "optim" in items:
        items["optim"]["extra"] |= {name: begun[name] for name in new}
    key = root_key_of(progress, shapes.rng)
    state = filled(dataclasses.replace(from_items(items, shapes), rng=key))
    if int(state.step) != entry.step:
        raise LearnerError(
            f"the checkpoint {store.path(entry.step)} is of step {int(state.step)}, not of {entry.step}",
            code="checkpoint-step-mismatch",
        )
    return Restored(entry, state, progress, store.metrics(entry.step), tuple(notes))


def _take_as_saved(needed: Items, saved: Mapping[str, Any]) -> list[str]:
    """Makes the loss scale of `needed` that of a checkpoint: another precision has none, or another one. The names of
    what begins anew, as the checkpoint does not have it.
    """
    here, there = needed["optim"]["extra"], saved["optim"].get("extra") or {}
    new = [name for name in here if name.startswith(SCALE) and name not in there]
    for name in new:
        del here[name]
    here |= {name: x for name, x in there.items() if name.startswith(SCALE) and name not in here and x.shape == ()}
    return new


def restore_newest(
    store: CheckpointStore,
    shapes: TrainState,
    filled: Callable[[TrainState], TrainState],
    allow: Collection[str] = (),
    differing: Differing = lambda progress: [],
) -> Restored | None:
    """The newest checkpoint that is not damaged, or `None` where there are no checkpoints.

    Raises:
      LearnerError: all of them are damaged, or the newest differs from the learner as it is now.
    """
    entries = {entry.step: entry for entry in store.entries}
    damaged: list[str] = []
    for step in reversed(store.steps):
        try:
            if step in store.damaged:
                raise DamagedError(store.damaged[step], code="checkpoint-damaged")
            restored = restore(store, entries[step], shapes, filled, allow, differing)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        used = f"the run goes on from the checkpoint of step {step}, before it"
        return dataclasses.replace(restored, notes=(*(f"{text}; {used}" for text in damaged), *restored.notes))
    if damaged:
        raise LearnerError(
            "there is no checkpoint that could be used:\n  "
            + "\n  ".join(damaged)
            + "\nTo begin anew, use LearnerBuilder(directory, overwrite=True) (--overwrite=true)",
            code="resume-no-usable-checkpoint",
        )
    return None


# -- what progress may say ---------------------------------------------------------------------------------------------


def _count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < LARGEST


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or check(x)


def _is(kind: Any) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, kind)


def _position(x: Any) -> bool:
    fields = {"epoch", "batch", "step", "in_epoch", "due", "left"}
    return (
        isinstance(x, dict)
        and x.keys() == fields
        and all(_count(x[name]) for name in ("epoch", "batch", "step", "in_epoch"))
        and x["epoch"] >= 1
        and x["in_epoch"] <= min(x["step"], x["batch"])
        and x["due"] in ("", "validation", "epoch")
        and isinstance(x["left"], list)
        and all(map(_is(str), x["left"]))
    )


def _fingerprint(x: Any) -> bool:
    """Of a mapping; those of version 0.1.0 have `grouping` and `made_with` in its place."""
    return isinstance(x, dict) and all(isinstance(x.get(part), dict) for part in ("data", "settings", "programs"))


def _key(x: Any) -> bool:
    return isinstance(x, list) and len(x) in (2, 4) and all(_count(word) and word < 2**32 for word in x)


def _number(x: Any) -> bool:
    """A number as JSON has it: also one of the words for those that are not finite."""
    return is_value(x) and not isinstance(decode(x), str | bool)


def _fields(**checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An object that has these fields, each as its check needs it."""
    return lambda x: isinstance(x, dict) and all(name in x and check(x[name]) for name, check in checks.items())


def _data(x: Any) -> bool:
    return not (isinstance(x, dict) and x.keys() == {"processes"}) or isinstance(x["processes"], list)


def _rate_value(x: Any) -> bool:
    return isinstance(x, float | int) and not isinstance(x, bool) and is_value(x) and 0 <= x < math.inf


STOPPING = _fields(monitor=_is(str), best=_optional(_number), without=_count, seen=_count)
PROGRESS: dict[str, Callable[[Any], bool]] = {
    "position": _position,
    "monitor": _is(str),
    "higher_is_better": _is(bool),
    "score": _optional(_number),
    "root_key": _key,
    "history": _is(dict),
    "log": _is(dict),
    "epoch_values": lambda x: isinstance(x, dict) and all("/" in key and is_value(x[key]) for key in x),
    "host_metrics": lambda x: isinstance(x, dict) and all(map(_is(dict), x.values())),
    "early_stopping": lambda x: isinstance(x, list) and all(map(STOPPING, x)),
    "plateau": _optional(_fields(best=_optional(_number), rate=_rate_value, without=_count, resting=_count)),
    "validated_step": _optional(_count),
    "ends_epoch": _optional(_count),
    "at_stop": _is(bool),
    "at_end": _is(bool),
    "config": _optional(_is(str)),
    "made_on": _is(dict),
}


OLD: dict[str, Callable[[Any], bool]] = {
    "grouping": lambda x: isinstance(x, dict) and all(map(_optional(_count), x.values())),
    "made_with": _is(dict),
}
"""In place of the fingerprint, in checkpoints of version 0.1.0."""


def refuse_malformed(progress: Mapping[str, Any], step: int, path: str) -> None:
    """Raises `LearnerError` for what no run can have written, be it that a checkpoint was made by somebody else."""
    checks = PROGRESS | ({"fingerprint": _fingerprint} if "fingerprint" in progress else OLD)
    wrong = [name for name, check in checks.items() if name not in progress or not check(progress[name])]
    if not _data(progress.get("data")):
        wrong.append("data")
    if not wrong and progress["position"]["step"] != step:
        wrong = ["position"]
    if wrong:
        raise LearnerError(
            f"the checkpoint {path} cannot be gone on from: {', '.join(wrong)} in progress cannot be so",
            code="resume-progress-malformed",
            path=path,
        )
    refuse_position(progress["log"])
    History.from_json(progress["history"])


# -- what is not as it was ---------------------------------------------------------------------------------------------


def differences(
    progress: Mapping[str, Any], fingerprint: Mapping[str, Any], inputs: Inputs, allow: Collection[str]
) -> list[str]:
    """What makes a checkpoint inside an epoch mean something else now. One at the end of an epoch has no such ties."""
    position = Position.from_json(progress["position"])
    if not position.batch:
        return []
    problems = []
    if (count := _processes_of(progress)) not in (None, inputs.source("train").shares):
        problems.append(
            f"the checkpoint of step {position.step} lies inside epoch {position.epoch}, and each of {count} processes "
            f"had data of its own, whose positions {inputs.source('train').shares} cannot take over. Go on with as "
            "many, or from the end of an epoch: checkpoint(epoch)"
        )
    before, where = saved_fingerprint(progress), f"the checkpoint of step {position.step} lies inside epoch "
    where += str(position.epoch)
    changed = changes(before, fingerprint).train_data
    if changed and position.pending != "epoch" and "data" not in allow:
        problems.append(
            f"{where}, and its position means other rows now: {'; '.join(changed)}. Resume with the data of before, "
            f"from the end of an epoch with checkpoint(epoch), or with allow=('data',): {ALLOWED['data']}"
        )
    had, have = before["settings"].get("metrics"), fingerprint["settings"]["metrics"]
    if had != have and position.pending != "epoch" and "metrics" not in allow:
        problems.append(
            f"{where}, with the metrics {_listed(had)} of the train split in flight, and now there are "
            f"{_listed(have)}. Go on with those of before, from the end of an epoch, or with allow=('metrics',): "
            f"{ALLOWED['metrics']}"
        )
    return problems


def data_of(progress: Mapping[str, Any], process: int) -> Any:
    """Where the training data of a process was; `None` where that is not known."""
    count = _processes_of(progress)
    if count is None:
        return progress.get("data")
    return progress["data"]["processes"][process] if process < count else None


def _processes_of(progress: Mapping[str, Any]) -> int | None:
    """How many processes had data of their own; `None`: it was the same for all."""
    data = progress.get("data")
    return len(data["processes"]) if isinstance(data, dict) and data.keys() == {"processes"} else None


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) and names else "none"


def changes_since(restored: Restored, fingerprint: Mapping[str, Any], options: Options) -> tuple[list[str], list[str]]:
    """Return the warning about what changed since a checkpoint and has an effect, if any, and lines for the log about
    what may change last bits.
    """
    changed, position = changes(saved_fingerprint(restored.progress), fingerprint), restored.position
    warned, now = [], platform_facts()
    doubts = changed.doubts if position.batch else []  # between epochs the source itself warns of the order
    if texts := changed.others + changed.train_data + doubts:
        since = f"since the checkpoint of step {restored.entry.step}"
        warned.append(f"the run resumes although this changed {since}: {'; '.join(texts)}")
    warned += too_few_epochs(options, position)
    made_on = restored.progress["made_on"]
    others = [f"{name}: {made_on.get(name)} -> {now[name]}" for name in now if made_on.get(name) != now[name]]
    if others := changed.logged + others:
        return warned, [f"{', '.join(others)}: numbers may differ from those of before in their last bits"]
    return warned, []


def too_few_epochs(options: Options, position: Position) -> list[str]:
    """The warning about a run that is asked for fewer epochs or steps than it has, if it is."""
    begun = position.epoch - (0 if position.batch else 1)
    if options.num_epochs is not None and begun > options.num_epochs:
        has = f"is in epoch {begun}" if position.batch else f"has {begun}"
        return [f"num_epochs is {options.num_epochs}, and the run {has} already: nothing is trained"]
    if options.num_steps is not None and position.step > options.num_steps:
        return [f"num_steps is {options.num_steps}, and the run has {position.step} already: nothing is trained"]
    return []


# -- giving back -------------------------------------------------------------------------------------------------------


def set_stopping(early_stopping: list[MetricEarlyStopping], saved: list[Mapping[str, Any]]) -> None:
    """Each goes on with the state of the first one that followed its metric; a new one begins anew."""
    left = list(saved)
    for stopping in early_stopping:
        state = next((s for s in left if s.get("monitor") == stopping.monitor.monitor), None)
        if state is not None:
            left.remove(state)
            stopping.set_state(state)


def tally_in_flight(restored: Restored | None, runner: Runner, options: Options) -> MetricAccumulator:
    """The train split's metrics: of a checkpoint that was made inside an epoch, or new."""
    fresh = runner.start("train")
    if restored is None or restored.metrics is None or not _same_metrics(restored, options):
        return fresh
    leaves, tree = jax.tree.flatten(fresh.metrics)
    states = restored.metrics["states"]
    found = [states.get(str(i)) for i in range(len(leaves))]
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in found if x is not None]:
        raise LearnerError(
            f"the checkpoint of step {restored.entry.step} holds other states of the train split's metrics than these "
            "metrics have now; go on from the end of an epoch: checkpoint(epoch)",
            code="resume-metric-state-differs",
        )
    return runner.start("train", jax.tree.unflatten(tree, found))


def rows_in_flight(
    restored: Restored | None, names: Mapping[str, list[str]], options: Options
) -> dict[str, dict[str, list[list[np.ndarray]]]]:
    """The rows that collecting metrics (their names by split) held at a checkpoint made inside an epoch."""
    if restored is None or not _same_metrics(restored, options):
        return {}
    stored = (restored.metrics or {}).get("rows") or {}
    held: dict[str, dict[str, list[list[np.ndarray]]]] = {}
    for split, metrics in stored.items():
        for index, columns in metrics.items():
            rows = [np.asarray(columns[str(i)]) for i in range(len(columns))]
            held.setdefault(split, {})[names[split][int(index)]] = [rows]
    return held


def restore_host_metrics(restored: Restored | None, metrics: Mapping[str, Sequence[MetricBase]]) -> None:
    """Metrics on the host (by split) go on with what they kept in the checkpoint."""
    kept = {} if restored is None else restored.progress["host_metrics"]
    for split, of_split in metrics.items():
        for metric in of_split:
            if isinstance(metric, HostMetric) and metric.name in kept.get(split, {}):
                metric.set_state(kept[split][metric.name])


def _same_metrics(restored: Restored, options: Options) -> bool:
    had: Any = saved_fingerprint(restored.progress)["settings"].get("metrics")
    return bool(had == metrics_in_flight(options))
