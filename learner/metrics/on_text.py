"""Metrics of sequences on texts: words or characters instead of tokens."""

import copy
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError, near
from learner.metrics.base import CollectingMetric, Info
from learner.metrics.bleu import BLEU
from learner.metrics.edits import CharacterErrorRate, WordErrorRate
from learner.metrics.rouge import RougeL
from learner.metrics.sequences import ExactMatch
from learner.metrics.tokens import Ends, token_lists
from learner.util.default_device import cpu_device

UNITS: dict[str, Callable[[str], Sequence[str]]] = {"words": str.split, "characters": list}
ROWS = 256  # compared at once
TokenMetric = WordErrorRate | CharacterErrorRate | BLEU | RougeL | ExactMatch


class OnText(CollectingMetric):
    """A metric of sequences on texts: tokens are decoded at the end of a split, and their words (separated by white
    space) or characters compared. `BLEU` compares the words of its tokenizer.

    Tokens are collected on the host until then; the metric has no value per step.

    Args:
      metric: `WordErrorRate()`, `CharacterErrorRate()`, `BLEU()`, `RougeL()` or `ExactMatch()`. Its `pad_id` and
        `eos_id` determine which tokens are decoded.
      decode: a function that takes a list of token ids and returns their text, such as a tokenizer's `decode`.
      units: `"words"` or `"characters"`; default: characters for `CharacterErrorRate`, else words. Not for `BLEU`.

    Raises:
      LearnerError: the metric or the units are not one of these; `decode` fails, or does not return a text. The
        constructor tries it on an empty list.

    >>> from learner.metrics.edits import WordErrorRate
    >>> from learner.steps.outputs import GeneratedOutput
    >>> pieces = ["to", "day", " is", " sun"]
    >>> metric = OnText(WordErrorRate(), lambda ids: "".join(pieces[i] for i in ids))
    >>> out = GeneratedOutput.of(jnp.array([[0, 1, 2]]), jnp.array([[3, 1, 2]]))
    >>> print(metric.name, metric.compute(metric.collect(out)))   # today is, sunday is
    Word Error Rate on Text 0.5
    """

    fields = ("predictions", "targets")
    pads_rows = True

    def __init__(self, metric: TokenMetric, decode: Callable[[list[int]], str], units: str | None = None) -> None:
        ends = getattr(metric, "_ends", None)
        if not isinstance(ends, Ends):
            needs = "WordErrorRate(), CharacterErrorRate(), BLEU(), RougeL() or ExactMatch()"
            raise LearnerError(f"OnText got {metric!r}; it needs {needs}", code="metric-text-type")
        if not callable(decode):
            raise LearnerError(
                f"decode of OnText is {decode!r}; it needs a function of a list of token numbers",
                code="metric-decode-type",
            )
        _decoded(decode, [], "OnText")  # rather now than at the end of an epoch
        if isinstance(metric, BLEU) and units is not None:
            raise LearnerError(
                f"units of OnText is {units!r}, and BLEU has a tokenizer instead: leave units out, and choose one in "
                "BLEU(tokenize='char')",
                code="metric-units-unused",
                units=units,
            )
        units = metric.units if units is None else units
        if units not in UNITS:
            raise LearnerError(
                f"units of OnText is {units!r}: {near(str(units), list(UNITS))}",
                code="metric-units-unknown",
                units=units,
            )
        self.higher_is_better, self.unit = metric.higher_is_better, metric.unit
        self.description, self.undefined = metric.description, metric.undefined
        self.name = f"{metric.name} on Text" + ("" if units == metric.units else f" by {units}")
        self._ends, self._decode, self._units = ends, decode, UNITS[units]
        self._metric: Any = copy.copy(metric)
        self._metric._ends = Ends(metric.name, -1, None)

    def collect(self, output: Any) -> dict[str, Any]:
        """Return the tokens of predictions and targets; see `Ends.collect`. It is traced."""
        return self._ends.collect(output)

    def compute(self, rows: dict[str, Any]) -> float:
        """Compute the metric over all texts of the split."""
        texts = [[_decoded(self._decode, ids, self.name) for ids in side] for side in token_lists(rows)]
        if isinstance(self._metric, BLEU):  # has its own tokenizers
            return self._metric.score_texts(*texts)
        known: dict[str, int] = {}
        sides = [[[known.setdefault(u, len(known)) for u in self._units(text)] for text in side] for side in texts]
        with jax.default_device(cpu_device()):
            state, update = self._metric.init(), jax.jit(self._update)
            for first in range(0, len(sides[0]), ROWS):
                state = update(state, *(_padded(side[first : first + ROWS]) for side in sides))
            return float(self._metric.compute(state))

    def _update(self, state: Any, predictions: Any, targets: Any) -> Any:
        output = types.SimpleNamespace(predictions=predictions, targets=targets)
        return self._metric.update(state, output, Info(jnp.int32(0), jnp.float32(1)))


def _decoded(decode: Callable[[list[int]], str], ids: list[int], name: str) -> str:
    try:
        text = decode(ids)
    except Exception as error:
        raise LearnerError(
            f"decode of {name} cannot take {ids}: {type(error).__name__}: {error}",
            code="metric-decode-failed",
            name=name,
        ) from error
    if not isinstance(text, str):
        raise LearnerError(
            f"decode of {name} returned {type(text).__name__} for {ids}; it needs to return a str",
            code="metric-decode-returns-no-text",
            name=name,
        )
    return text


def _padded(rows: list[list[int]]) -> np.ndarray:
    """Return int32 `[rows, length]`, padded with -1. Few lengths are used, as each is compiled."""
    longest = max(map(len, rows), default=0)
    padded = np.full((len(rows), 2 ** math.ceil(math.log2(max(longest, 8)))), -1, np.int32)
    for row, numbers in zip(padded, rows, strict=True):
        row[: len(numbers)] = numbers
    return padded
