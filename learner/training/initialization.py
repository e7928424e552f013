"""The initial arrays of a new run from another run's checkpoint."""

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learner.checkpoint.items import SHOWN, from_items
from learner.checkpoint.load import blank_state, evaluated_item, has_averages, read_items, store_of
from learner.checkpoint.path_match import PathMatch
from learner.checkpoint.store import CheckpointStore, read_while_training
from learner.errors import LearnerError
from learner.models.base import ModelAdapter
from learner.models.freezing import frozen_leaves
from learner.training.options import Options
from learner.util.text import count, join_names, printable
from learner.util.trees import nonfinite_leaves


@dataclasses.dataclass(frozen=True)
class InitReport:
    """A report of the arrays that a new run has loaded from another run's checkpoint.

    Attributes:
      source: the checkpoint.
      loaded: the paths of the loaded arrays.
      unmatched: the paths of arrays that keep their initial values, with the reason for each.
      unused: the paths of the checkpoint's other arrays.
      renamed: the path in the checkpoint by path in the model, for loaded arrays whose paths differ.
      untrained: the unmatched parameters that are not trained, by their names in the model.
    """

    source: str
    loaded: tuple[str, ...]
    unmatched: Mapping[str, str]
    unused: tuple[str, ...]
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    untrained: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Return a summary in one line.

        >>> print(InitReport("the checkpoint runs/a/checkpoint/6", ("params/w",), {"params/b": "not there"}, ()).line)
        took 1 of 2 arrays from the checkpoint runs/a/checkpoint/6
        """
        unused = f"; {count(len(self.unused), 'array')} of it unused" if self.unused else ""
        total = count(len(self.loaded) + len(self.unmatched), "array")
        return printable(f"took {len(self.loaded)} of {total} from {self.source}{unused}")

    @property
    def warning(self) -> str | None:
        """Return a warning about parameters that stay random, if the checkpoint may have them under other paths."""
        if not self.untrained or not self.unused:
            return None
        frozen, unused = (join_names(paths, 3) for paths in (self.untrained, self.unused))
        return printable(
            f"parameters that are not trained stay as initialised ({frozen}), while {self.source} has {unused} unused: "
            "if these belong there, rename=[(regular expression, replacement)] of initial_from gives them other paths"
        )

    @property
    def details(self) -> list[str]:
        """Return a line for each array that was renamed, not used, or not loaded (with the reason)."""
        renamed = [f"  renamed: {old} -> {new}" for new, old in self.renamed.items()]
        unmatched = [f"  not restored: {path}: {reason}" for path, reason in self.unmatched.items()]
        return [printable(text) for text in [*renamed, *unmatched, *(f"  unused: {path}" for path in self.unused)]]


def take_initial(options: Options, adapter: ModelAdapter) -> tuple[ModelAdapter, InitReport]:
    """Return the adapter with the arrays of the checkpoint that `initial_from` names, and a report.

    Raises:
      LearnerError: there is no such checkpoint, `overwrite=True` would remove it, or it does not fit.
    """
    initial = options.initial
    assert initial is not None

    def read(store: CheckpointStore) -> tuple[str, bool, dict[str, Any]]:
        _refuse_overwritten(options, store)
        entry = store.find(None if initial["step"] is not None else initial["which"], initial["step"])
        averaged = has_averages(store, entry)
        # Averages are part of the optimizer's state, which is read only for them.
        items, _ = read_items(store, entry, ("model", "optim") if averaged else ("model",))
        return f"the checkpoint {store.path(entry.step)}", averaged, items

    checkpoint, averaged, items = read_while_training(lambda: store_of(initial["directory"]), read)
    blank = blank_state(adapter, None)
    # By the checkpoint's own paths, before `rename` changes them.
    saved = evaluated_item(items["model"], items["optim"]["opt_state"]) if averaged else items["model"]
    match = PathMatch(saved, blank, adapter.kind, initial["rename"], checkpoint)
    if initial["partial"]:
        match.refuse_strangers(checkpoint)
    else:
        partial = "initial_from(directory, partial=True) takes what has the same path and shape"
        rest = "and leaves the rest as the model was initialised; rename= gives the checkpoint's arrays other paths"
        match.refuse_differences(checkpoint, f"{partial}, {rest}")
    state = from_items({"model": match.items()}, blank)
    if bad := nonfinite_leaves(state.params):
        raise LearnerError(
            f"{checkpoint} has NaN or infinite values in {', '.join(bad[:SHOWN])}; take another one",
            code="model-initial-nonfinite",
        )
    frozen = frozen_leaves(adapter, adapter.model_state)
    # Linen's frozen parameters are in a separate part.
    places = {name: {f"model_state/{name}", f"model_state/frozen.{name}"} for name in frozen}
    untrained = tuple(name for name, paths in places.items() if paths & match.unmatched.keys())
    changed = copy.copy(adapter)
    changed.params, changed.model_state = state.params, state.model_state
    return changed, InitReport(checkpoint, match.matched, match.unmatched, match.unused, match.renamed, untrained)


def _refuse_overwritten(options: Options, store: CheckpointStore) -> None:
    """Raise if the new run would remove the checkpoint that it loads."""
    if not options.overwrite:
        return
    place = str(store.place.root)
    removed = [options.directory / "checkpoint", options.directory / "superseded", options.checkpoint_place]
    if any(Path(place).resolve().is_relative_to(Path(p).resolve()) for p in removed if "://" not in f"{p}{place}"):
        raise LearnerError(
            f"initial_from names the checkpoints in {place}, which overwrite=True would remove; choose another "
            "directory for the new run",
            code="model-initial-overwritten",
            place=place,
        )
