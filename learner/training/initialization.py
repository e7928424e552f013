"""The arrays that a new run takes from a checkpoint."""

import contextlib
import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from learner.checkpoint import CheckpointStore
from learner.checkpoint.items import from_items
from learner.checkpoint.load import SHOWN, PathMatch, blank_state, evaluated_params, has_averages, read_items, store_of
from learner.errors import LearnerError
from learner.models.adapters import ModelAdapter
from learner.training.options import Options
from learner.util.text import count, printable
from learner.util.trees import nonfinite_leaves


@dataclasses.dataclass(frozen=True)
class InitReport:
    """What a new run took of another's checkpoint.

    Attributes:
      source: the checkpoint.
      taken: the paths of the arrays that were taken.
      left: why the others stay as the model was initialised, by path.
      unused: the paths of the checkpoint's other arrays.
    """

    source: str
    taken: tuple[str, ...]
    left: Mapping[str, str]
    unused: tuple[str, ...]

    @property
    def line(self) -> str:
        """All in one line.

        >>> print(InitReport("the checkpoint runs/a/checkpoint/6", ("params/w",), {"params/b": "not there"}, ()).line)
        took 1 of 2 arrays from the checkpoint runs/a/checkpoint/6
        """
        unused = f"; {count(len(self.unused), 'array')} of it unused" if self.unused else ""
        total = count(len(self.taken) + len(self.left), "array")
        return printable(f"took {len(self.taken)} of {total} from {self.source}{unused}")

    @property
    def details(self) -> list[str]:
        """What was not taken and why, and what was not used, in a line each."""
        left = [f"  not taken: {path}: {why}" for path, why in self.left.items()]
        return [printable(text) for text in [*left, *(f"  unused: {path}" for path in self.unused)]]


def take_initial(options: Options, family: ModelAdapter) -> tuple[ModelAdapter, InitReport]:
    """The family with the arrays of the checkpoint that `initial_from` names, and what was taken.

    Raises:
      LearnerError: there is no such checkpoint, it would be removed by `overwrite=True`, or it does not fit.
    """
    asked = options.initial
    assert asked is not None
    with contextlib.closing(store_of(asked["directory"])) as store:
        _refuse_own(options, store)
        entry = store.find(None if asked["step"] is not None else asked["which"], asked["step"])
        others = has_averages(store, entry)
        items, _ = read_items(store, entry, ("model", "optim") if others else ("model",))
    what = f"the checkpoint {store.path(entry.step)}"
    blank = blank_state(family, None)
    found = PathMatch(items["model"], blank, family.kind)
    if asked["partial"]:
        found.refuse_strangers(what)
    else:
        partial = "initial_from(directory, partial=True) takes what has the same path and shape"
        found.refuse_differences(what, f"{partial}, and leaves the rest as the model was initialised")
    state = from_items({"model": found.items()}, blank)
    if others:
        params = evaluated_params(state.params, items["optim"]["opt_state"])
        state = dataclasses.replace(state, params=params)
    if bad := nonfinite_leaves(state.params):
        raise LearnerError(
            f"{what} has NaN or infinite values in {', '.join(bad[:SHOWN])}; take another one",
            code="model-initial-nonfinite",
        )
    changed = copy.copy(family)
    changed.params, changed.model_state = state.params, state.model_state
    return changed, InitReport(what, found.taken, found.left, found.unused)


def _refuse_own(options: Options, store: CheckpointStore) -> None:
    """A run that is replaced cannot be the one that its successor begins with."""
    if not options.overwrite:
        return
    place = str(store.path(0).parent)
    own = [options.directory / "checkpoint", options.directory / "superseded", options.checkpoint_place]
    if any(Path(place).resolve().is_relative_to(Path(p).resolve()) for p in own if "://" not in f"{p}{place}"):
        raise LearnerError(
            f"initial_from names the checkpoints in {place}, which overwrite=True would remove; choose another "
            "directory for the new run",
            code="model-initial-overwritten",
            place=place,
        )
