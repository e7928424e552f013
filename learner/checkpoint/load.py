"""Loading checkpoints outside of their run: for inference, for a custom loop, and as the start of another run.

Nothing named in a file is imported or called: the caller provides the model.
"""

import contextlib
import dataclasses
import functools
import math
import os
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, overload

import jax
import jax.numpy as jnp
import numpy as np

from learner.checkpoint.items import escaped, from_items, unescaped
from learner.checkpoint.manifest import NAME, DamagedError
from learner.checkpoint.member_store import member_store, names_of_members, store_beside
from learner.checkpoint.path_match import PathMatch
from learner.checkpoint.store import CheckpointStore, Entry, read_while_training
from learner.errors import LearnerError, one_error
from learner.models.adapters import adapter_of, call_with_key
from learner.models.base import ModelAdapter
from learner.models.freezing import trained_of
from learner.models.linen import Linen
from learner.models.matching import Match
from learner.models.model_types import CreatesModel, FunctionOfRngs, ModelT
from learner.models.tree_structure import is_module
from learner.optimizers.schedule_resolution import with_placeholder_schedules
from learner.records.model_files import load_model
from learner.runs.history import History
from learner.runs.journal import read_journal
from learner.runs.population import member_index
from learner.steps.eval_params import eval_leaves, has_eval_params
from learner.steps.optimizer import init_optimizer
from learner.steps.optimizer_checks import check_optimizer
from learner.steps.train_state import TrainState
from learner.util.addresses import is_address, refuse_store
from learner.util.machine import machine_memory
from learner.util.number_checks import check_int, is_int, plain_numbers
from learner.util.several import as_several
from learner.util.text import printable, short

Array = Any
PyTree = Any
Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class LoadedCheckpoint(Generic[ModelT]):
    """The model and the metadata that `load_checkpoint` returns.

    Attributes:
      path: the path of the checkpoint.
      step: the optimizer step.
      epoch: the epoch that ends at the checkpoint, or None if it was made inside one.
      score: the monitored metric's value, or None.
      monitor: the key of the metric that selects the best.
      lr_scale: the learning rate of a step is `schedule(step) * lr_scale`; without a schedule it is `lr_scale`.
      history: the values of every metric up to the checkpoint.
      config: the text of the config that started the run, or None.
      params: the trained arrays as NumPy arrays by path. Random keys are their numbers.
      model_state: the other arrays of the model.
      opt_state: the arrays of the optimizer's state.
      model: the given model with the arrays of the checkpoint, in eval mode; a new object.
      optimizer_state: the state of the given optimizer, in its own structure.
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
    model: ModelT = dataclasses.field(repr=False)
    optimizer_state: PyTree = dataclasses.field(repr=False)


@overload
def load_checkpoint(
    directory: str | Path,
    which: int | str = "best",
    model: CreatesModel[ModelT] = ...,
    *,
    step: int | None = None,
    optimizer: Any = None,
    trainable: Any = None,
    freeze: Match | Sequence[Match] = (),
) -> LoadedCheckpoint[ModelT]: ...


@overload
def load_checkpoint(
    directory: str | Path,
    which: int | str = "best",
    model: FunctionOfRngs[ModelT] = ...,
    *,
    step: int | None = None,
    optimizer: Any = None,
    trainable: Any = None,
    freeze: Match | Sequence[Match] = (),
) -> LoadedCheckpoint[ModelT]: ...


@overload
def load_checkpoint(
    directory: str | Path,
    which: int | str = "best",
    model: ModelT = ...,
    *,
    step: int | None = None,
    optimizer: Any = None,
    trainable: Any = None,
    freeze: Match | Sequence[Match] = (),
) -> LoadedCheckpoint[ModelT]: ...


def load_checkpoint(
    directory: str | Path,
    which: int | str = "best",
    model: Any = None,
    *,
    step: int | None = None,
    optimizer: Any = None,
    trainable: Any = None,
    freeze: Match | Sequence[Match] = (),
) -> LoadedCheckpoint[Any]:
    """Read a checkpoint of a run, which may still be training. Each process may call this alone.

    Args:
      directory: the directory of the run or, if they are elsewhere, of its checkpoints. For a member of a population,
        its directory or, if the checkpoints are elsewhere, its name below theirs.
      which: `"best"` (for a member, among the checkpoints that its population has kept), `"latest"`, or the epoch of
        the checkpoint.
      model: as for `build`, an object or a function that makes one. It is not changed. None: load only arrays.
      step: the optimizer step of the checkpoint, instead of `which`.
      optimizer: a function of the learning rate as for `build`, for `optimizer_state`. It requires the model.
      trainable: as for `build`; the optimizer's state depends on it.
      freeze: as for the builder, one or several; the optimizer's state depends on it.

    Raises:
      DamagedError: the checkpoint is damaged.
      LearnerError: there is no such checkpoint, or the model or the optimizer differs; the message lists all
        differences.

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

    def read(store: CheckpointStore) -> tuple[Entry, str, dict[str, Any], dict[str, Any]]:
        entry = store.find(None if step is not None else which, step)
        return entry, str(store.path(entry.step)), *read_items(store, entry, ("model", "optim", "scheduler"))

    entry, path, items, progress = read_while_training(lambda: store_of(directory), read)
    what = f"the checkpoint {path}"
    rebuilt = optimizer_state = None
    if model is not None:
        adapter = _split_model(model, trainable, freeze)
        blank = blank_state(adapter, optimizer)
        match = PathMatch(evaluated_item(items["model"], items["optim"]["opt_state"]), blank, adapter.kind)
        stored = items["optim"]["opt_state"] if optimizer is not None else {}
        match.refuse_differences(what, _advice(optimizer), stored)
        model_items = {part: _on_device(arrays) for part, arrays in match.items().items()}
        state = from_items({"model": model_items, "optim": {"opt_state": _on_device(stored)}}, blank)
        rebuilt = adapter.rebuild(state.params, state.model_state)
        optimizer_state = state.opt_state if optimizer is not None else None
    return LoadedCheckpoint(
        path=path,
        step=entry.step,
        epoch=entry.epoch,
        score=entry.score,
        monitor=progress.get("monitor"),
        lr_scale=float(items["scheduler"]["lr_scale"]["value"]),
        history=History.from_json(progress.get("history", {})),
        config=progress.get("config"),
        params=_by_path(items["model"]["params"]),
        model_state=_by_path(items["model"]["model_state"]),
        opt_state=_by_path(items["optim"]["opt_state"]),
        model=rebuilt,
        optimizer_state=optimizer_state,
    )


def load_optimizer(
    path: str | Path, model: Any, optimizer: Any, *, trainable: Any = None, freeze: Match | Sequence[Match] = ()
) -> PyTree:
    """Return the state of an optimizer, in its own structure, from a file that a run wrote with
    `with_file_checkpointer(record=..., record_items=("model", "optim"))`.

    Args:
      path: the file, such as `runs/digits/checkpoint/optim-3.mpk.gz`.
      model: as for `build`, an object or a function that makes one. It is not changed.
      optimizer: a function of the learning rate as for `build`.
      trainable: as for `build`; the optimizer's state depends on it.
      freeze: as for the builder, one or several; the optimizer's state depends on it.

    Raises:
      LearnerError: there is no such file, it is damaged, or it has another optimizer or model; then the message lists
        all paths that differ.
    """
    return load_model(path, blank_state(_split_model(model, trainable, freeze), optimizer).opt_state)


@dataclasses.dataclass(frozen=True)
class SchedulerRecord:
    """The position of a checkpoint in its learning rate schedule.

    Attributes:
      step: optimizer steps so far.
      lr_scale: the learning rate of a step is `schedule(step) * lr_scale`; without a schedule it is `lr_scale`.
    """

    step: int
    lr_scale: float


def load_scheduler(path: str | Path) -> SchedulerRecord:
    """Read a file that `with_file_checkpointer(record=..., record_items=("model", "scheduler"))` wrote.

    Args:
      path: the file, such as `runs/digits/checkpoint/scheduler-3.mpk.gz`.

    Raises:
      LearnerError: there is no such file, it is damaged, or it does not hold a scheduler.

    >>> import os, tempfile
    >>> from learner import save_model
    >>> path = os.path.join(tempfile.mkdtemp(), "scheduler-1.mpk")
    >>> _ = save_model(path, {"step": jnp.int32(45), "lr_scale": jnp.float32(0.5)})
    >>> load_scheduler(path)
    SchedulerRecord(step=45, lr_scale=0.5)
    """
    record = load_model(path, {"step": np.int32(0), "lr_scale": np.float32(0)})
    return SchedulerRecord(int(record["step"]), float(record["lr_scale"]))


def _split_model(model: Any, trainable: Any, freeze: Match | Sequence[Match]) -> ModelAdapter:
    frozen = tuple(as_several(freeze))
    return adapter_of(materialize(model), trained_of(trainable, frozen) if frozen else trainable, shared=True)


def _advice(optimizer: Any) -> str:
    names = "model= and trainable=" if optimizer is None else "model=, optimizer=, trainable= and freeze="
    return f"Give {names} as they were for that run, or no model at all to get the arrays by path"


def refuse_unknown(name: str, directory: Any, which: Any, step: Any) -> None:
    """Raise `LearnerError` if the arguments of the function `name` do not select a checkpoint."""
    if not isinstance(directory, str | Path) or not str(directory):
        raise LearnerError(
            f"the directory of {name} is {short(repr(directory))}; it needs a path, such as 'runs/digits'",
            code="checkpoint-directory-type",
            name=name,
            directory=directory,
        )
    known = which in ("best", "latest") if isinstance(which, str) else is_int(plain_numbers(which)) and which >= 1
    if not known:
        is_model = name == "load_checkpoint" and not isinstance(which, str | int | float)
        raise LearnerError(
            f"which of {name} is {short(repr(which))}; it needs 'best', 'latest', or an epoch, 1 or more"
            + "; a model is the keyword model=" * is_model,
            code="checkpoint-which-unknown",
            name=name,
            which=which,
        )
    if step is not None:
        check_int("step", step, least=0, of=name, code="checkpoint-step-value")


def materialize(model: Any) -> Any:
    """Return the model, or the result of a function that makes it. Random streams, if it takes any, have the seed 0.

    >>> materialize(lambda: {"w": 1.0})
    {'w': 1.0}
    """
    return call_with_key(model, jax.random.key(0)) if makes_model(model) else model


def makes_model(model: Any) -> bool:
    """Return True for a function that makes a model and is not a model itself."""
    if isinstance(model, Linen) or is_module(model):
        return False
    return isinstance(model, types.FunctionType | types.MethodType | functools.partial | type)


# -- finding and reading -----------------------------------------------------------------------------------------------


def store_of(directory: str | Path) -> CheckpointStore:
    """Return the checkpoints of a run's directory, or those in the directory itself."""
    refuse_store(directory)
    place: Any = str(directory) if is_address(directory) else Path(directory).absolute()
    # A run's directory is the usual argument; the directory of the checkpoints themselves is the fallback.
    for path in (f"{place}/checkpoint" if isinstance(place, str) else place / "checkpoint", place):
        store = CheckpointStore(path)
        if store.steps:
            return store
    of_member = member_store(place, place) if isinstance(place, Path) else store_beside(place)
    if of_member is not None:
        return of_member
    if isinstance(place, Path):
        refuse_elsewhere(place)
    if isinstance(place, Path) and not place.is_dir():
        raise LearnerError(
            f"there is no directory {directory} to load a checkpoint from",
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
    raise LearnerError(
        f"there is no checkpoint in {directory}{hint}",
        code="checkpoint-missing",
        directory=directory,
        elsewhere=elsewhere,
    )


def refuse_elsewhere(directory: Path) -> None:
    """Raise if a member of a population has no checkpoint because the population saves elsewhere."""
    elsewhere = _elsewhere(directory.parent) if member_index(directory) is not None else None
    if elsewhere is not None:
        raise LearnerError(
            f"the checkpoints of the population in {directory.parent} are in {elsewhere}: give "
            f"{elsewhere}/{directory.name}",
            code="checkpoint-missing",
            directory=directory,
            elsewhere=elsewhere,
        )


def _elsewhere(directory: Path) -> str | None:
    """Return the directory of a run's checkpoints according to its journal, for a message.

    It is not opened, as the journal is untrusted.
    """
    with contextlib.suppress(LearnerError, OSError):
        saves = [line.get("path") for _, line in read_journal(directory) if line.get("event") == "save"]
        if saves and isinstance(saves[-1], str):
            return printable(os.path.dirname(saves[-1]))
    return None


def read_items(
    store: CheckpointStore, entry: Entry, names: Sequence[str]
) -> tuple[dict[str, dict[str, Arrays]], dict[str, Any]]:
    """Return items of a checkpoint, each with all of its parts, and its progress."""
    try:
        with store.reading(entry.step):
            progress = store.progress(entry.step)
            shapes = store.shapes(entry.step, names)
            # Before a byte is read: the shapes come from an untrusted file.
            _refuse_absurd(shapes, f"the checkpoint {store.path(entry.step)}")
            if progress.get("members"):
                raise LearnerError(
                    f"the checkpoint {store.path(entry.step)} is of a population: give the directory of a member, such "
                    f"as {next(iter(names_of_members(progress)), '000-...')}",
                    code="checkpoint-of-population",
                    path=str(store.path(entry.step)),
                )
            items = store.read(entry.step, shapes)
    except DamagedError as error:
        raise store.damaged_error(entry.step, error) from None
    parts = {"model": ("params", "model_state"), "optim": ("opt_state",), "scheduler": ("lr_scale",)}
    return {name: {part: items[name].get(part) or {} for part in parts[name]} for name in names}, progress


def _refuse_absurd(shapes: Any, name: str) -> None:
    """Raise if the shapes need more memory than the machine has: a file of a few bytes can claim any shape."""
    needed = sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(shapes))
    if needed > (room := machine_memory()):
        raise LearnerError(
            f"{name} claims that its arrays take {needed} bytes, but there is memory for {room}",
            code="checkpoint-too-large",
            needed=needed,
            room=room,
        )


def _by_path(arrays: Arrays) -> Arrays:
    return {unescaped(name): array for name, array in arrays.items()}


def evaluated_item(model: Mapping[str, Arrays], opt_state: Arrays) -> dict[str, Arrays]:
    """Return the item `model` of a checkpoint with the parameters to evaluate, such as averages. They are found by the
    checkpoint's own paths, before they are matched to a model with other paths or other trainable parameters.
    """
    named = _by_path(opt_state)
    if not has_eval_params(named):  # most states, which are as large as the model or larger, stay on the host
        return dict(model)
    params, opt_state = _on_device(_by_path(model["params"])), _on_device(named)
    replaced = eval_leaves(params, opt_state)
    if not replaced and params.keys() == {"value"}:  # a model of one array, whose path is empty in the state
        replaced = eval_leaves({"": params["value"]}, opt_state)
    return {**model, "params": {**model["params"], **{escaped(name): x for name, x in replaced.items()}}}


def has_averages(store: CheckpointStore, entry: Entry) -> bool:
    """Return True if the checkpoint is evaluated with other parameters than it trains, such as averages."""
    try:
        optim = store.shapes(entry.step, ("optim",))["optim"]
    except DamagedError:  # reading the model raises it
        return False
    return has_eval_params(optim.get("opt_state") or {})


def _on_device(arrays: Arrays) -> Arrays:
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def blank_state(adapter: ModelAdapter, optimizer: Any) -> TrainState:
    """Return a state of shapes, for the arrays of a checkpoint."""
    opt_state: PyTree = ()
    if optimizer is not None:
        optimizer = with_placeholder_schedules(optimizer)
        if problems := check_optimizer(optimizer, adapter.params, False, own_grads=True).problems:
            raise one_error(problems, code="checkpoint-arguments-wrong")
        # The rate does not matter: only the structure of the state is used; the checkpoint replaces its values.
        first = lambda params: init_optimizer(optimizer, None, params, jnp.float32(1))  # noqa: E731
        opt_state = jax.jit(first)(adapter.params)
    return TrainState(jnp.int32(0), adapter.params, adapter.model_state, opt_state, jnp.float32(1), (), {})
