"""Conversion between a train state and the items of a checkpoint. Every leaf is stored by its path, for models of all
libraries.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.steps.train_state import TrainState
from learner.util.trees import is_key, key_impl, named_leaves

OF_STREAM = re.compile(r"(?:.*/)?model_state/(?:.*\.)?(?:key|count)\.value")
REBUILD = "Build the learner as it was for that run, or start a new run in another directory"
SHOWN = 20  # of a long list
Items = dict[str, dict[str, dict[str, Any]]]
PARTS = {"model": ("params", "model_state"), "optim": ("opt_state", "extra"), "scheduler": ("step", "lr_scale")}


def to_items(state: TrainState) -> Items:
    """Return the items `model`, `optim` and `scheduler`, with the leaves of each part of the state by path. Random keys
    become numbers.
    """
    return {item: {part: stored_leaves(getattr(state, part)) for part in parts} for item, parts in PARTS.items()}


def from_items(items: Mapping[str, Any], state: TrainState) -> TrainState:
    """Return the state with the leaves of the items. Parts that belong to other items are unchanged."""
    parts = {
        part: loaded_leaves(items[item].get(part) or {}, getattr(state, part)) for item in items for part in PARTS[item]
    }
    return dataclasses.replace(state, **parts)


def stored_leaves(tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree by path, in a form that Orbax can store: random keys as numbers, and without empty
    arrays, which it refuses.
    """
    leaves = {name: x for name, x in named_leaves(tree).items() if x.size}
    return {escaped(name): _numbers(x) if is_key(x) else x for name, x in leaves.items()}


def loaded_leaves(stored: Mapping[str, Any], tree: Any) -> Any:
    """Return the tree with the arrays that `stored_leaves` returned. A leaf that was stored only as a shape is
    unchanged.
    """
    leaves = []
    for name, old in named_leaves(tree).items():
        # Orbax refuses empty arrays, so it was not stored; the new one is empty, too.
        new = stored[escaped(name)] if old.size else None
        if new is None and isinstance(old, jax.ShapeDtypeStruct):
            old = jnp.zeros(old.shape, old.dtype, device=old.sharding)
        elif new is not None and not isinstance(new, jax.ShapeDtypeStruct):
            old = jax.random.wrap_key_data(new, impl=key_impl(old)) if is_key(old) else new
        leaves.append(old)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def root_key_of(progress: Mapping[str, Any], key: Any) -> Any:
    """Return the random key of a checkpoint's progress, with the implementation of `key`, which may be a shape.

    Raises:
      LearnerError: the key has another implementation, with which the resumed run would have other random numbers.
    """
    numbers, impl = jnp.asarray(progress["root_key"], jnp.uint32), key_impl(key)
    shape, length = jax.eval_shape(jax.random.key_data, key).shape, numbers.shape[-1]
    saved = progress.get("key_impl") or IMPLEMENTATIONS.get(length, f"{length} numbers")
    if numbers.shape != shape or progress.get("key_impl") not in (None, str(impl)):
        raise LearnerError(
            f"the random keys of the checkpoint are of the implementation {saved}, and those of this process are of "
            f"{impl}: set jax_default_prng_impl (or JAX_DEFAULT_PRNG_IMPL) to {saved} to resume, or start a new run "
            "from the saved parameters (initial_from)",
            code="checkpoint-key-implementation",
            saved=saved,
            now=str(impl),
        )
    return jax.random.wrap_key_data(numbers, impl=impl)


IMPLEMENTATIONS = {2: "threefry2x32", 4: "rbg"}  # by the length of a key, if a checkpoint names none


def _numbers(keys: Any) -> Any:
    if not isinstance(keys, jax.ShapeDtypeStruct):
        return jax.random.key_data(keys)
    shape = jax.eval_shape(jax.random.key_data, keys)
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=keys.sharding)


def escaped(name: str) -> str:
    """Return the name of an array in a checkpoint."""
    return name.replace("%", "%25").replace("/", "%2F") or "value"


def unescaped(name: str) -> str:
    """Return the path of an array from its name in a checkpoint."""
    return name.replace("%2F", "/").replace("%25", "%")


def differences(saved: Mapping[str, Any], needed: Mapping[str, Any]) -> list[str]:
    """Return a line for every leaf that differs between a checkpoint and a learner. Random streams of nnx modules in
    containers, which the model state of earlier versions held, are no difference.

    Args:
      saved: the leaves of the checkpoint by path, with `shape` and `dtype`.
      needed: the same for the learner.
    """
    rows = []
    old = {name for name in {*saved} - {*needed} if OF_STREAM.fullmatch(name) and str(saved[name].dtype) == "uint32"}
    for name in sorted({*saved, *needed} - old):
        a, b = (_described(side.get(name)) for side in (saved, needed))
        if a != b:
            rows.append(f"{name}: saved {a}, now {b}")
    return rows


def refuse_differences(saved: Mapping[str, Any], needed: Mapping[str, Any], name: str, advice: str = REBUILD) -> None:
    """Raise one error that lists all differences; see `difference_text`."""
    if rows := differences(saved, needed):
        raise LearnerError(difference_text(rows, name, advice), code="checkpoint-model-differs", count=len(rows))


def difference_text(rows: Sequence[str], name: str, advice: str = REBUILD) -> str:
    """Return the lines of `differences` as a message, with the name of the checkpoint and the remedy."""
    differing = "1 array differs" if len(rows) == 1 else f"{len(rows)} arrays differ"
    title = f"{name} was saved by another model or optimizer; {differing}:"
    more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return "\n  ".join([title, *rows[:SHOWN], *more]) + f"\n{advice}"


def _described(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"


def flat(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of items by `item/part/path`."""
    return {
        f"{i}/{p}/{n}": x
        for i, parts in items.items()
        for p, leaves in parts.items()
        for n, x in (leaves or {}).items()
    }
