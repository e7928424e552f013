"""Reading a checkpoint into the arrays of a run."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from learner.checkpoint.items import Items, difference_text, from_items, root_key_of, to_items
from learner.checkpoint.load import evaluated_item
from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.path_match import paths_in_model
from learner.checkpoint.store import CheckpointStore, Entry
from learner.errors import LearnerError, one_error
from learner.steps.eval_params import has_eval_params
from learner.steps.train_state import TrainState
from learner.training.definition import TrainingDefinition
from learner.training.progress.position import Position
from learner.training.progress.progress_schema import refuse_malformed

ALLOWED = {
    "data": "the epoch continues after as many batches as before, with the current data",
    "metrics": "the metrics of this epoch start over, because the checkpoint holds states of other metrics",
    "optimizer": "the optimizer begins with a new state",
    "logs": "the logs continue as they are, although parts of them are missing",
}
"""Changes that a resumed run accepts if `allow=` names them, and their effect."""


MORE_TRAINED = (
    ", whose initial_from takes the parameters of this one: what is frozen, or trainable, has changed. Inside of a run "
    "a Group with a schedule that is 0 at first unfreezes parameters (docs: howto/fine-tuning)"
)


@dataclasses.dataclass(frozen=True)
class Restored:
    """The content of a checkpoint.

    Attributes:
      entry: the checkpoint.
      state: the train state, placed by the strategy.
      progress: everything else, as JSON.
      metrics: the item `in_flight` of a checkpoint inside an epoch, or None.
      notes: warnings about newer checkpoints that are damaged, and about accepted changes.
    """

    entry: Entry
    state: TrainState
    progress: Mapping[str, Any]
    metrics: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def position(self) -> Position:
        """The position of the run."""
        # A new object at each access, as a run advances its position in place.
        return Position.from_json(self.progress["position"])

    def of_member(self, index: int) -> "Restored":
        """Return the checkpoint of a population with the values of one member. The state still has all members."""
        progress = {**self.progress, **self.progress["members"][index]}
        metrics = None if self.metrics is None else {**self.metrics}
        if metrics is not None:
            metrics["rows"] = (metrics.get("rows") or {}).get(str(index))
        return dataclasses.replace(self, progress=progress, metrics=metrics)


SCALE = "loss_scale."  # where the loss scale is in `extra`
Differing = Callable[[Mapping[str, Any]], list[str]]


def restore(
    store: CheckpointStore,
    entry: Entry,
    definition: TrainingDefinition,
    allow: Collection[str] = (),
    differing: Differing = lambda progress: [],
    eval_only: bool = False,
) -> Restored:
    """Read a checkpoint. Each array is placed as it is read, so memory never holds a second state.

    Args:
      store: the store of the checkpoint.
      entry: the checkpoint.
      definition: the definition of the run.
      allow: the accepted changes, of `ALLOWED`.
      differing: takes `progress`, and returns further reasons why the run cannot resume.
      eval_only: True for a model that is not trained: accept another optimizer, and other frozen parameters. With
        another optimizer, the parameters that the checkpoint is evaluated with, such as averages, become the parameters
        of the state.

    Raises:
      DamagedError: a file of the checkpoint is damaged.
      LearnerError: the checkpoint does not fit; one error lists all differences.
    """
    progress = store.progress(entry.step)
    refuse_malformed(progress, entry.step, str(store.path(entry.step)))
    shapes, kind = definition.placed_shapes(), definition.step.adapter.kind
    needed = to_items(shapes)
    # A copy, as `_adopt_loss_scale` changes the original.
    begun = dict(needed["optim"]["extra"])
    saved = store.shapes(entry.step, ["model", "optim"])
    new = _adopt_loss_scale(needed, saved["optim"])
    own_model = needed["model"]
    if eval_only:
        needed["model"] = _regroup(own_model, saved["model"], kind)
    differing_in = {item: store.differences(entry.step, {item: needed[item]}) for item in needed}
    notes = []
    optimizer_differs = bool(differing_in["optim"])
    if optimizer_differs and (eval_only or "optimizer" in allow):
        del needed["optim"], differing_in["optim"]
        if not eval_only:
            notes.append(f"the optimizer has changed: {ALLOWED['optimizer']}")
    problems = [line for lines in differing_in.values() for line in lines]
    if problems:
        fresh = "; resume(allow='optimizer') or --resume.allow=optimizer begins with a new state of the optimizer"
        what = difference_text(problems, f"the checkpoint {store.path(entry.step)}")
        if _trains_others(saved["model"], needed["model"]):
            what += MORE_TRAINED
        problems = [what if differing_in["model"] else what + fresh]
    problems += differing(progress)
    if problems:
        raise one_error(problems, "the run cannot resume", code="resume-differs")
    items = store.restore(entry.step, needed)
    if eval_only:
        model = items["model"]
        if optimizer_differs and has_eval_params(saved["optim"].get("opt_state") or {}):
            params = _eval_params(model["params"], store, entry, saved["optim"], shapes.step.sharding)
            model = {**model, "params": params}
        items["model"] = _regroup(model, own_model, kind)
    if "optim" in items:
        # Still shapes, for `fill_missing` to initialise: the checkpoint lacks this entry of a loss scale.
        items["optim"]["extra"] |= {name: begun[name] for name in new}
    key = root_key_of(progress, shapes.rng)
    state = definition.step.fill_missing(dataclasses.replace(from_items(items, shapes), rng=key))
    if (step := int(np.max(state.step))) != progress.get("state_step", entry.step):
        raise LearnerError(
            f"the checkpoint {store.path(entry.step)} is of step {step}, not of {entry.step}",
            code="checkpoint-step-mismatch",
        )
    return Restored(entry, state, progress, store.metrics(entry.step), tuple(notes))


def _trains_others(saved: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    """Return True for items `model` with the same paths, but different parameters to train."""
    names = [{path.removeprefix("frozen.") for paths in model.values() for path in paths} for model in (saved, needed)]
    return names[0] == names[1] and set(saved.get("params") or ()) != set(needed["params"])


def _adopt_loss_scale(needed: Items, saved: Mapping[str, Any]) -> list[str]:
    """Replace the loss scale in `needed` by the checkpoint's, as that of another precision differs or is missing.
    Return the names of the entries that the checkpoint lacks.
    """
    extra, saved_extra = needed["optim"]["extra"], saved.get("extra") or {}
    new = [name for name in extra if name.startswith(SCALE) and name not in saved_extra]
    for name in new:
        del extra[name]
    extra |= {
        name: x for name, x in saved_extra.items() if name.startswith(SCALE) and name not in extra and x.shape == ()
    }
    return new


def _regroup(item: Mapping[str, Any], like: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return an item `model` with its arrays grouped as in another item: a frozen parameter is not part of `params`.
    Arrays that the other item lacks stay in place.
    """
    place_of, regrouped = paths_in_model(like, kind), {part: dict[str, Any]() for part in item}
    for name, (part, path) in paths_in_model(item, kind).items():
        new_part, new_path = place_of.get(name, (part, path))
        regrouped[new_part][new_path] = item[part][path]
    return regrouped


def _eval_params(
    params: dict[str, Any], store: CheckpointStore, entry: Entry, saved: Mapping[str, Any], replicated: Any
) -> dict[str, Any]:
    """Return the parameters that a checkpoint is evaluated with, such as averages, by path.

    Args:
      params: the parameters of the checkpoint, placed.
      store: the store of the checkpoint.
      entry: the checkpoint.
      saved: the shapes of its item `optim`. Arrays are placed like the parameters that they belong to.
      replicated: the sharding of the other arrays.
    """

    def as_parameter(name: str, x: Any) -> Any:
        like = next((p for path, p in params.items() if name.endswith(f".{path}") and p.shape == x.shape), None)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated if like is None else like.sharding)

    needed = {part: {name: as_parameter(name, x) for name, x in leaves.items()} for part, leaves in saved.items()}
    opt_state = store.restore(entry.step, {"optim": needed})["optim"]["opt_state"]

    def averages(params: dict[str, Any], opt_state: dict[str, Any]) -> dict[str, Any]:
        return dict(evaluated_item({"params": params}, opt_state)["params"])

    shardings = {path: x.sharding for path, x in params.items()}
    return dict(jax.jit(averages, out_shardings=shardings)(params, opt_state))


def restore_newest(
    store: CheckpointStore,
    definition: TrainingDefinition,
    allow: Collection[str] = (),
    differing: Differing = lambda progress: [],
    eval_only: bool = False,
) -> Restored | None:
    """Return the newest intact checkpoint, or None if there are no checkpoints.

    Raises:
      LearnerError: all of them are damaged, or the newest does not fit the learner.
      RemovedError: a checkpoint was removed before it was read.
    """
    entries = {entry.step: entry for entry in store.entries}
    damaged: list[str] = []
    for step in reversed(store.steps):
        try:
            with store.reading(step):
                if step in store.damaged:
                    raise DamagedError(store.damaged[step], code="checkpoint-damaged", step=step)
                restored = restore(store, entries[step], definition, allow, differing, eval_only)
        # Only damage leads to an older checkpoint: if the newest one does not fit, the user must decide.
        except DamagedError as error:
            damaged.append(str(error))
            continue
        used = older_checkpoint_clause(step, eval_only)
        return dataclasses.replace(restored, notes=(*(f"{text}; {used}" for text in damaged), *restored.notes))
    if damaged:
        raise LearnerError(
            "there is no checkpoint that could be used:\n  "
            + "\n  ".join(damaged)
            + "\nTo start over, use LearnerBuilder(directory, overwrite=True) (--overwrite=true)",
            code="resume-no-usable-checkpoint",
        )
    return None


def older_checkpoint_clause(step: int, eval_only: bool) -> str:
    """Return a clause about the checkpoint that is used in place of a newer one."""
    return f"{'the model is that of' if eval_only else 'the run resumes from'} the checkpoint of step {step}, before it"
