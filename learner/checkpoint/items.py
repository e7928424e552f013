"""A train state as the items of a checkpoint, and back. Every leaf is stored under its path, whatever the model's
library.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.steps.state import TrainState, named_leaves

Items = dict[str, dict[str, dict[str, Any]]]
PARTS = {"model": ("params", "model_state"), "optim": ("opt_state", "extra"), "scheduler": ("step", "lr_scale")}


def to_items(state: TrainState) -> Items:
    """The items `model`, `optim` and `scheduler`: for each part of the state, its leaves by path. Random keys become
    numbers.
    """
    return {item: {part: _stored(getattr(state, part)) for part in parts} for item, parts in PARTS.items()}


def from_items(items: Mapping[str, Any], state: TrainState) -> TrainState:
    """The state with what the items hold in place of its leaves; only the items that are there."""
    parts = {part: _loaded(items[item].get(part) or {}, getattr(state, part)) for item in items for part in PARTS[item]}
    return dataclasses.replace(state, **parts)


def _stored(tree: Any) -> dict[str, Any]:
    """Orbax refuses arrays without elements; there is nothing to be stored of them."""
    leaves = {name: x for name, x in named_leaves(tree).items() if x.size}
    return {_escaped(name): jax.random.key_data(x) if _is_key(x) else x for name, x in leaves.items()}


def _loaded(stored: Mapping[str, Any], tree: Any) -> Any:
    leaves = []
    for name, old in named_leaves(tree).items():
        if old.size:
            new = stored[_escaped(name)]
            old = jax.random.wrap_key_data(new, impl=jax.random.key_impl(old)) if _is_key(old) else new
        leaves.append(old)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F") or "value"


def differences(saved: Mapping[str, Any], needed: Mapping[str, Any]) -> list[str]:
    """A line for every leaf in which a checkpoint and a learner differ.

    Args:
      saved: leaves of the checkpoint by path, with `shape` and `dtype`.
      needed: the same of the learner.
    """
    rows = []
    for name in sorted({*saved, *needed}):
        a, b = (_described(side.get(name)) for side in (saved, needed))
        if a != b:
            rows.append(f"{name}: saved {a}, now {b}")
    return rows


def refuse_differences(saved: Mapping[str, Any], needed: Mapping[str, Any], what: str) -> None:
    """One error that lists them all; `what` is the checkpoint, for the message."""
    if rows := differences(saved, needed):
        raise LearnerError(difference_text(rows, what))


def difference_text(rows: Sequence[str], what: str) -> str:
    """The lines of `differences`, for people."""
    shown = [*rows[:20], *([f"and {len(rows) - 20} more"] if len(rows) > 20 else [])]
    return (
        f"{what} was saved by another model or optimizer; it differs in {len(rows)} arrays:\n  "
        + "\n  ".join(shown)
        + "\nBuild the learner as it was for that run, or start a new run in another directory"
    )


def _described(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"


def flat(items: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of items by `item/part/path`."""
    return {
        f"{i}/{p}/{n}": x
        for i, parts in items.items()
        for p, leaves in parts.items()
        for n, x in (leaves or {}).items()
    }
