"""Sequences of tokens: masks, ends and lengths."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Array, rows_mask
from learner.metrics.class_arguments import is_integral
from learner.metrics.rows import as_int32


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The counted tokens of a batch of sequences, moved to the front.

    Attributes:
      ids: int32 `[batch, length]`; entries after the counted ones are arbitrary.
      length: int32 `[batch]`, the number of counted tokens of each row.
    """

    ids: Array
    length: Array

    @property
    def counted(self) -> Array:
        """bool `[batch, length]`: True for the tokens that count."""
        return jnp.arange(self.ids.shape[1], dtype=jnp.int32)[None] < self.length[:, None]


@dataclasses.dataclass(frozen=True)
class Ends:
    """The end of a sequence and the tokens to ignore, for metrics that compare whole sequences.

    Args:
      name: the metric's name, for error messages.
      pad_id: a token to ignore at any position.
      eos_id: a token that ends a sequence; the token and everything after it are ignored.

    Raises:
      LearnerError: an id is not an integer, or both are equal.
    """

    name: str
    pad_id: int | None
    eos_id: int | None

    def __post_init__(self) -> None:
        for what, value in (("pad_id", self.pad_id), ("eos_id", self.eos_id)):
            if value is not None and not is_integral(value):
                raise LearnerError(
                    f"{what} of {self.name} is {value!r}; it needs the number of a token, or None",
                    code="metric-token-value",
                    value=value,
                )
        if self.pad_id is not None and self.pad_id == self.eos_id:
            raise LearnerError(
                f"pad_id and eos_id of {self.name} are both {self.eos_id}; give eos_id alone: nothing after it counts",
                code="metric-token-both",
            )

    @property
    def words(self) -> str:
        """The part of the metric's name: `Exact Match ignoring 0 ending at 2`."""
        ignored = "" if self.pad_id is None else f" ignoring {self.pad_id}"
        return ignored + ("" if self.eos_id is None else f" ending at {self.eos_id}")

    def pairs(self, output: Any) -> tuple[Tokens, Tokens, Array]:
        """Return the predicted tokens, the target tokens, and the mask of the rows that count, bool `[batch]`.

        `predictions` and `targets` are integers `[batch, length]`, whose lengths may differ. A mask `[batch]` selects
        rows. A mask `[batch, length]` selects target tokens, and also predicted tokens unless the output has a
        `prediction_mask` `[batch, length]`. A row without any selected token does not count.

        Raises:
          LearnerError: the shapes or dtypes are others.
        """
        predictions, targets = self._ids(output, "predictions"), self._ids(output, "targets")
        if len(predictions) != len(targets):
            raise LearnerError(
                f"{self.name} got {len(predictions)} predictions and {len(targets)} targets", code="metric-token-counts"
            )
        mask = rows_mask(output)
        if mask is not None and mask.shape not in (targets.shape, targets.shape[:1]):
            raise LearnerError(
                f"{self.name} got a mask of shape {mask.shape}; it needs {targets.shape} or {targets.shape[:1]}",
                code="metric-mask-shape",
            )
        rows = jnp.ones(len(targets), bool) if mask is None else mask.astype(bool)
        of_targets = of_predictions = None
        if rows.ndim == 2:
            of_targets, rows = rows, rows.any(-1)
            of_predictions = of_targets
        given = getattr(output, "prediction_mask", None)
        if given is not None:
            of_predictions = given.astype(bool)
        if of_predictions is not None and of_predictions.shape != predictions.shape:
            raise LearnerError(
                f"{self.name} got predictions of shape {predictions.shape} and a mask of shape "
                f"{of_predictions.shape}; if their lengths differ, give the output a prediction_mask of their shape, "
                "or give the metric pad_id or eos_id and the output a mask of rows",
                code="metric-mask-shape",
            )
        return self._tokens(predictions, of_predictions, rows), self._tokens(targets, of_targets, rows), rows

    def collect(self, output: Any) -> dict[str, Array]:
        """Return the tokens of an output for a `CollectingMetric` to collect: the arrays of `pairs` by name.

        Raises:
          LearnerError: see `pairs`.
        """
        predicted, target, rows = self.pairs(output)
        tokens = {"predicted": predicted.ids, "predicted length": predicted.length}
        return tokens | {"target": target.ids, "target length": target.length, "rows": rows}

    def _ids(self, output: Any, field: str) -> Array:
        ids = jnp.asarray(getattr(output, field))
        if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise LearnerError(
                f"{self.name} got {type(output).__name__} with {field} {ids.dtype}{list(ids.shape)}; it needs token "
                "numbers: integers [batch, length]",
                code="metric-token-shape",
                field=field,
            )
        return as_int32(ids)

    def _tokens(self, ids: Array, mask: Array | None, rows: Array) -> Tokens:
        kept = jnp.broadcast_to(rows[:, None], ids.shape)
        if mask is not None:
            kept &= mask
        if self.pad_id is not None:
            kept &= ids != self.pad_id
        if self.eos_id is not None:
            kept &= jnp.cumsum((ids == self.eos_id) & kept, axis=1, dtype=jnp.int32) == 0
        if mask is None and self.pad_id is None:
            ordered = ids  # counted tokens are first already
        else:
            ordered = jnp.take_along_axis(ids, jnp.argsort(~kept, axis=1, stable=True), axis=1)
        return Tokens(ordered, kept.sum(1, dtype=jnp.int32))


def token_lists(rows: Mapping[str, np.ndarray]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the predicted and the target tokens of the rows that count, from the result of `Ends.collect`.

    >>> import types
    >>> output = types.SimpleNamespace(predictions=jnp.array([[5, 1, 6]]), targets=jnp.array([[5, 6, 7]]))
    >>> token_lists(Ends("Mine", None, 1).collect(output))
    ([[5]], [[5, 6, 7]])
    """
    kept = {name: np.asarray(x)[np.asarray(rows["rows"])] for name, x in rows.items()}
    predicted, target = (
        [ids[:length].tolist() for ids, length in zip(kept[side], kept[f"{side} length"], strict=True)]
        for side in ("predicted", "target")
    )
    return predicted, target
