"""Checkpoints outside of their run: for inference, for a loop of one's own, and as the start of another run.

Nothing that a file names is imported or called: the model comes from whoever loads.
"""

import contextlib
import dataclasses
import functools
import math
import os
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.checkpoint import CheckpointStore, DamagedError, Entry
from learner.checkpoint.items import differences, from_items, to_items
from learner.checkpoint.manifest import NAME
from learner.errors import LearnerError, one_error
from learner.models.adapters import Linen, ModelAdapter, adapter_of, is_instance_of
from learner.models.freezing import trained_of
from learner.models.matching import Match
from learner.optimizers.schedule_resolution import with_placeholder_schedules
from learner.records import load_model
from learner.runs.history import History
from learner.runs.journal import read_journal
from learner.steps.eval_params import eval_leaves, has_eval_params
from learner.steps.optimizer import check_optimizer, init_optimizer
from learner.steps.state import TrainState
from learner.util.text import printable
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
Arrays = dict[str, Any]

SHOWN = 20  # of a long list


@dataclasses.dataclass(frozen=True)
class LoadedCheckpoint:
    """The model and the metadata that `load_checkpoint` read.

    Attributes:
      path: where it lies.
      step: the optimizer step.
      epoch: the epoch that it is the end of, or `None` when it was made inside of one.
      score: the monitored metric's value, or `None`.
      monitor: the metric that decides about the best, by key.
      lr_scale: the rate of a step is `schedule(step) * lr_scale`; without a schedule it is the rate.
      history: what every metric was up to there.
      config: the text of the config that the run was started from, or `None`.
      params: what was trained, as NumPy arrays by path. Random keys are their numbers.
      model_state: the other arrays of the model.
      opt_state: those of the optimizer.
      model: the model that was given, with the arrays of the checkpoint, in eval mode; a new object.
      optimizer_state: the state of the optimizer that was given, in its own structure.
    """

    path: str
    step: int
    epoch: int | None
    score: float | None
    monitor: str | None
    lr_scale: float
    history: History = dataclasses.field(repr=False)
    config: str | None = dataclasses.field(repr=False)
    params: Arrays = dataclasses.field(repr=False)
    model_state: Arrays = dataclasses.field(repr=False)
    opt_state: Arrays = dataclasses.field(repr=False)
    model: Any = dataclasses.field(repr=False, default=None)
    optimizer_state: PyTree = dataclasses.field(repr=False, default=None)


def load_checkpoint(
    directory: str | Path,
    which: int | str = "best",
    model: Any = None,
    *,
    step: int | None = None,
    optimizer: Any = None,
    trainable: Any = None,
    freeze: Match | Sequence[Match] = (),
) -> LoadedCheckpoint:
    """Reads a checkpoint of a run, which may still be going on.

    Args:
      directory: of the run, or the one that holds its checkpoints where they lie elsewhere.
      which: `"best"`, `"latest"`, or the epoch that it ends.
      model: what `build` was given: an object, or a function that makes one. It is not changed. `None`: only arrays.
      step: the optimizer step instead of `which`.
      optimizer: a function of the learning rate as for `build`, for `optimizer_state`. It needs the model.
      trainable: as for `build`; the optimizer's state depends on it.
      freeze: as for the builder, one or several; the optimizer's state depends on it.

    Raises:
      DamagedError: the checkpoint that was named is not as it was saved.
      LearnerError: there is no such checkpoint, or the model or the optimizer is another one; then it lists all that
        differs.

    >>> import tempfile, optax
    >>> from learner import LearnerBuilder, RegressionOutput
    >>> def train_step(model, batch):
    ...     return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])
    >>> directory, x = tempfile.mkdtemp() + "/line", jnp.array([[1.0], [2.0]])
    >>> builder = LearnerBuilder(directory).num_epochs(200).renderer(None)
    >>> learner = builder.build({"w": jnp.zeros((1, 1))}, optax.sgd, 0.1, train_step=train_step)
    >>> result = learner.fit([{"x": x, "y": 3 * x}])
    >>> loaded = load_checkpoint(directory, "latest", {"w": jnp.zeros((1, 1))})
    >>> print(loaded.step, loaded.monitor, f"{loaded.model['w'].item():.3f}")
    200 train/Loss 3.000
    """
    refuse_unknown("load_checkpoint", directory, which, step)
    if optimizer is not None and model is None:
        raise LearnerError(
            "load_checkpoint got an optimizer and no model; its state needs both: give model= too",
            code="checkpoint-model-missing",
        )
    with contextlib.closing(store_of(directory)) as store:
        entry = store.find(None if step is not None else which, step)
        items, progress = read_items(store, entry, ("model", "optim", "scheduler"))
    what = f"the checkpoint {store.path(entry.step)}"
    rebuilt = optimizer_state = None
    if model is not None:
        family = _family(model, trainable, freeze)
        blank = blank_state(family, optimizer)
        match = PathMatch(items["model"], blank, family.kind)
        stored = items["optim"]["opt_state"] if optimizer is not None else {}
        match.refuse_differences(what, _advice(optimizer), stored)
        model_items = {part: _on_device(arrays) for part, arrays in match.items().items()}
        state = from_items({"model": model_items, "optim": {"opt_state": _on_device(stored)}}, blank)
        params = evaluated_params(state.params, items["optim"]["opt_state"])
        rebuilt = family.rebuild(params, state.model_state)
        optimizer_state = state.opt_state if optimizer is not None else None
    return LoadedCheckpoint(
        path=str(store.path(entry.step)),
        step=entry.step,
        epoch=entry.epoch,
        score=entry.score,
        monitor=progress.get("monitor"),
        lr_scale=float(items["scheduler"]["lr_scale"]["value"]),
        history=History.from_json(progress.get("history", {})),
        config=progress.get("config"),
        params=_unescaped(items["model"]["params"]),
        model_state=_unescaped(items["model"]["model_state"]),
        opt_state=_unescaped(items["optim"]["opt_state"]),
        model=rebuilt,
        optimizer_state=optimizer_state,
    )


def load_optimizer(
    path: str | Path, model: Any, optimizer: Any, *, trainable: Any = None, freeze: Match | Sequence[Match] = ()
) -> PyTree:
    """Return the state of an optimizer, in its own structure, from a file that a run wrote with
    `with_file_checkpointer(record=..., record_items=("model", "optim"))`.

    Args:
      path: such as `runs/digits/checkpoint/optim-3.mpk.gz`.
      model: what `build` was given: an object, or a function that makes one. It is not changed.
      optimizer: a function of the learning rate as for `build`.
      trainable: as for `build`; the optimizer's state depends on it.
      freeze: as for the builder, one or several; the optimizer's state depends on it.

    Raises:
      LearnerError: there is no such file, it is damaged, or of another optimizer or model; then all paths that differ
        are named.
    """
    return load_model(path, blank_state(_family(model, trainable, freeze), optimizer).opt_state)


@dataclasses.dataclass(frozen=True)
class SchedulerRecord:
    """Where the learning rate of a checkpoint stood.

    Attributes:
      step: optimizer steps that were made.
      lr_scale: the rate of a step is `schedule(step) * lr_scale`; without a schedule it is the rate.
    """

    step: int
    lr_scale: float


def load_scheduler(path: str | Path) -> SchedulerRecord:
    """Read a file that `with_file_checkpointer(record=..., record_items=("model", "scheduler"))` wrote.

    Args:
      path: such as `runs/digits/checkpoint/scheduler-3.mpk.gz`.

    Raises:
      LearnerError: there is no such file, it is damaged, or no scheduler's.

    >>> import os, tempfile
    >>> from learner import save_model
    >>> path = os.path.join(tempfile.mkdtemp(), "scheduler-1.mpk")
    >>> _ = save_model(path, {"step": jnp.int32(45), "lr_scale": jnp.float32(0.5)})
    >>> load_scheduler(path)
    SchedulerRecord(step=45, lr_scale=0.5)
    """
    record = load_model(path, {"step": np.int32(0), "lr_scale": np.float32(0)})
    return SchedulerRecord(int(record["step"]), float(record["lr_scale"]))


def _family(model: Any, trainable: Any, freeze: Match | Sequence[Match]) -> ModelAdapter:
    several = [freeze] if isinstance(freeze, str | re.Pattern) or callable(freeze) else list(freeze)
    return adapter_of(materialize(model), trained_of(trainable, several) if several else trainable, shared=True)


def _advice(optimizer: Any) -> str:
    names = "model= and trainable=" if optimizer is None else "model=, optimizer=, trainable= and freeze="
    return f"Give {names} as they were for that run, or no model at all to get the arrays by path"


def refuse_unknown(name: str, directory: Any, which: Any, step: Any) -> None:
    """Raises `LearnerError` where arguments of the function `name` do not say which checkpoint is meant."""
    if not isinstance(directory, str | Path) or not str(directory):
        raise LearnerError(
            f"the directory of {name} is {directory!r}; it needs a path, such as 'runs/digits'",
            code="checkpoint-directory-type",
            name=name,
            directory=directory,
        )
    number = isinstance(which, int) and not isinstance(which, bool) and which >= 1
    if which not in ("best", "latest") and not number:
        raise LearnerError(
            f"which of {name} is {which!r}; it needs 'best', 'latest', or an epoch, 1 or more",
            code="checkpoint-which-unknown",
            name=name,
        )
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise LearnerError(
            f"step of {name} is {step!r}; it needs a whole number, 0 or more",
            code="checkpoint-step-value",
            name=name,
            step=step,
        )


def materialize(model: Any) -> Any:
    """The model, also of a function without arguments that makes it.

    >>> materialize(lambda: {"w": 1.0})
    {'w': 1.0}
    """
    return model() if makes_model(model) else model


def makes_model(model: Any) -> bool:
    """Return True for a function that makes a model and is not a model itself."""
    if isinstance(model, Linen) or is_instance_of(model, "flax.nnx", "Module"):
        return False
    return isinstance(model, types.FunctionType | types.MethodType | functools.partial | type)


# -- finding and reading -----------------------------------------------------------------------------------------------


def store_of(directory: str | Path) -> CheckpointStore:
    """The checkpoints of a run's directory, or those that lie in the directory itself."""
    place: Any = str(directory) if "://" in str(directory) else Path(directory).absolute()
    # A run's directory is the usual argument; the directory of the checkpoints themselves is the fallback.
    for path in (f"{place}/checkpoint" if isinstance(place, str) else place / "checkpoint", place):
        store = CheckpointStore(path)
        if store.steps:
            return store
    if isinstance(place, Path) and not place.is_dir():
        raise LearnerError(
            f"there is no directory {directory} to take a checkpoint from",
            code="checkpoint-directory-missing",
            directory=directory,
        )
    if isinstance(place, Path) and (place / NAME).exists():
        raise LearnerError(
            f"{directory} is one checkpoint; give the directory of its run, and step={place.name}",
            code="checkpoint-directory-is-one",
            directory=directory,
        )
    elsewhere = _elsewhere(place) if isinstance(place, Path) else None
    hint = "" if elsewhere is None else f"; by its journal they went to {elsewhere}: give that directory"
    raise LearnerError(f"there is no checkpoint in {directory}{hint}", code="checkpoint-missing", directory=directory)


def _elsewhere(directory: Path) -> str | None:
    """Where a run's journal says that its checkpoints lie. It is told, not followed."""
    with contextlib.suppress(LearnerError, OSError):
        saves = [line.get("path") for _, line in read_journal(directory) if line.get("event") == "save"]
        if saves and isinstance(saves[-1], str):
            return printable(os.path.dirname(saves[-1]))
    return None


def read_items(
    store: CheckpointStore, entry: Entry, names: Sequence[str]
) -> tuple[dict[str, dict[str, Arrays]], dict[str, Any]]:
    """Items of a checkpoint and its progress. An item always has all of its parts."""
    try:
        progress = store.progress(entry.step)
        shapes = store.shapes(entry.step, names)
        # Before a byte is read: the shapes come from a file that may have been made by anyone.
        _refuse_absurd(shapes, f"the checkpoint {store.path(entry.step)}")
        items = store.read(entry.step, shapes)
    except DamagedError as error:
        raise DamagedError(f"{error}; {store.others(entry.step)}", code="checkpoint-damaged") from None
    parts = {"model": ("params", "model_state"), "optim": ("opt_state",), "scheduler": ("lr_scale",)}
    return {name: {part: items[name].get(part) or {} for part in parts[name]} for name in names}, progress


def _refuse_absurd(shapes: Any, what: str) -> None:
    """Before memory is taken: a file that is a few bytes long can claim any shape."""
    needed = sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shapes))
    try:
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # the system does not say it
        return
    if needed > room:
        raise LearnerError(
            f"{what} says that its arrays take {needed} bytes, and there is memory for {room}",
            code="checkpoint-too-large",
        )


def _unescaped(arrays: Arrays) -> Arrays:
    return {_unescape(name): array for name, array in arrays.items()}


def _unescape(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def evaluated_params(params: PyTree, opt_state: Arrays) -> PyTree:
    """The parameters to evaluate; the state of the optimizer is that of the checkpoint, by path."""
    others = eval_leaves(named_leaves(params), _on_device(_unescaped(opt_state)))
    return jax.tree.unflatten(
        jax.tree.structure(params), [others.get(name, x) for name, x in named_leaves(params).items()]
    )


def has_averages(store: CheckpointStore, entry: Entry) -> bool:
    """Return True if the checkpoint is evaluated with other parameters than it trains, such as averages."""
    try:
        optim = store.shapes(entry.step, ("optim",))["optim"]
    except DamagedError:  # who reads the model says so
        return False
    return has_eval_params(optim.get("opt_state") or {})


def _on_device(arrays: Arrays) -> Arrays:
    return {name: jnp.asarray(array) for name, array in arrays.items()}


# -- fitting arrays to a model -----------------------------------------------------------------------------------------


def blank_state(family: ModelAdapter, optimizer: Any) -> TrainState:
    """A state whose arrays are only shapes to be filled."""
    opt_state: PyTree = ()
    if optimizer is not None:
        optimizer = with_placeholder_schedules(optimizer)
        if problems := check_optimizer(optimizer, family.params, 1, own_grads=True):
            raise one_error(problems, code="checkpoint-arguments-wrong")
        # The rate plays no part: its state is replaced by that of the checkpoint, and only its structure counts.
        first = lambda params: init_optimizer(optimizer, None, params, jnp.float32(1))  # noqa: E731
        opt_state = jax.jit(first)(family.params)
    return TrainState(jnp.int32(0), family.params, family.model_state, opt_state, jnp.float32(1), (), {})


class PathMatch:
    """The arrays of a checkpoint beside those of a model, by path.

    Attributes:
      taken: the paths of the arrays that fit.
      left: why the others do not, by path.
      unused: the paths that only the checkpoint has.
    """

    def __init__(self, saved: Mapping[str, Arrays], blank: TrainState, kind: str):
        self._saved, self._blank = saved, blank
        self._shapes = jax.eval_shape(to_items, blank)  # NumPy's 64-bit numbers become 32-bit ones
        self._there, self._here = _places(saved, kind), _places(self._shapes["model"], kind)
        self._fitting: list[str] = []
        self.left: dict[str, str] = {}
        for name, place in self._here.items():
            why = self._why_not(name)
            if why is None:
                self._fitting.append(name)
            else:
                self.left[_shown(place)] = why
        self.taken = tuple(_shown(self._here[name]) for name in self._fitting)
        self.unused = tuple(_shown(place) for name, place in self._there.items() if name not in self._here)

    def _why_not(self, name: str) -> str | None:
        if name not in self._there:
            return "not in the checkpoint"
        there, here = self._pair(name)
        floats = jnp.issubdtype(there.dtype, jnp.floating) and jnp.issubdtype(here.dtype, jnp.floating)
        if there.shape == here.shape and (there.dtype == here.dtype or floats):
            return None
        return f"{there.dtype}{list(there.shape)} there, {here.dtype}{list(here.shape)} here"

    def _pair(self, name: str) -> tuple[Any, Any]:
        part, path = self._there[name]
        part_here, path_here = self._here[name]
        return self._saved[part][path], self._shapes["model"][part_here][path_here]

    def refuse_differences(self, what: str, advice: str, opt_state: Arrays | None = None) -> None:
        """Raise one error that lists all arrays that differ, those of the optimizer included."""
        saved = {
            _shown(self._here.get(name, place)): self._saved[place[0]][place[1]] for name, place in self._there.items()
        }
        needed = {_shown(place): self._shapes["model"][place[0]][place[1]] for place in self._here.values()}
        saved |= {_shown(("opt_state", name)): x for name, x in (opt_state or {}).items()}
        needed |= {_shown(("opt_state", name)): x for name, x in self._shapes["optim"]["opt_state"].items()}
        if rows := differences(saved, needed):
            shown = rows[:SHOWN] + ([f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])
            title = f"{what} is of another model or optimizer; {len(rows)} arrays differ:"
            raise LearnerError("\n  ".join([title, *shown]) + f"\n{advice}", code="checkpoint-model-differs")

    def refuse_strangers(self, what: str) -> None:
        """An error where not one array fits."""
        if not self._fitting:
            here = [f"{path}: {why}" for path, why in self.left.items()]
            there = [f"{path}: unused" for path in self.unused]
            shown = [*here[:SHOWN], *there[:SHOWN]]
            raise LearnerError(
                f"nothing in {what} fits this model, by path and shape:\n  " + "\n  ".join(shown),
                code="checkpoint-nothing-fits",
            )

    def items(self) -> dict[str, Arrays]:
        """The item `model` for the state: what fits from the checkpoint, on the host and cast where it has to be; else
        the model's.
        """
        items = to_items(self._blank)["model"]
        for name in self._fitting:
            part, path = self._here[name]
            there, here = self._pair(name)
            items[part][path] = np.asarray(there).astype(here.dtype)
        return items


def _places(item: Mapping[str, Arrays], kind: str) -> dict[str, tuple[str, str]]:
    """Where each array stands, by its name in the whole model: `trainable=` moves arrays from one part to the other."""
    places = {}
    for part in ("params", "model_state"):
        for path in item[part]:
            name = path
            if kind == "flax.linen" and part == "model_state":
                frozen = path.startswith("frozen.")
                name = path.removeprefix("frozen.") if frozen else f"{part}/{path}"
            places[name] = part, path
    return places


def _shown(place: tuple[str, str]) -> str:
    return f"{place[0]}/{_unescape(place[1])}"
