"""BLEU, computed by sacrebleu."""

import math
from collections.abc import Sequence
from typing import Any

from learner.errors import LearnerError, near
from learner.metrics.base import CollectingMetric
from learner.metrics.class_arguments import is_real
from learner.metrics.tokens import Ends, token_lists
from learner.util.number_checks import check_int
from learner.util.optional import import_optional

SMOOTHINGS = ("exp", "floor", "add-k", "none")


class BLEU(CollectingMetric):
    """BLEU of all sequences together, from 0 to 1: the geometric mean of the precisions of n-grams of 1 to `order`
    tokens, times `exp(1 - target tokens / predicted tokens)` where the predictions are shorter.

    sacrebleu computes it, so `OnText(BLEU(), decode)` gives the values of papers (corpus BLEU with one reference, over
    the words of its tokenizer) divided by 100. Without `OnText`, the metric compares token ids. Sequences are collected
    on the host, and the metric has no value per step. It is NaN without sequences, and 0 without any match.

    Requires sacrebleu (extra `text`).

    Sources: Papineni, Roukos, Ward, Zhu, "BLEU: a Method for Automatic Evaluation of Machine Translation", 2002; Post,
    "A Call for Clarity in Reporting BLEU Scores", 2018; for smoothing: Chen, Cherry, "A Systematic Comparison of
    Smoothing Techniques for Sentence-Level BLEU", 2014.

    Args:
      smoothing: the smoothing of a precision of 0. `"exp"` halves the precision of one match for each of them,
        `"floor"` uses `value` (0.1) matches, `"add-k"` adds `value` (1) to matches and to n-grams of 2 tokens and more;
        `"none"` makes BLEU 0.
      value: the value for `"floor"` and `"add-k"`.
      order: the length of the longest n-grams.
      pad_id: a token to ignore at any position.
      eos_id: a token that ends a sequence; the token and everything after it are ignored.
      tokenize: sacrebleu's tokenizer of texts: `"13a"` (of WMT), `"intl"`, `"zh"`, `"char"`, `"none"` (white space) or
        one for which sacrebleu needs another package or a download, such as `"flores200"`.

    Raises:
      LearnerError: sacrebleu or the package of its tokenizer is not installed; an argument is invalid; the inputs are
        not integers `[batch, length]`.

    >>> import jax.numpy as jnp
    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[1, 2, 3, 4, 5]]), jnp.array([[1, 2, 3, 4, 6]]))
    >>> metric = BLEU()
    >>> print(f"{metric.compute(metric.collect(out)):.4f}")   # (4/5 · 3/4 · 2/3 · 1/2) ^ 1/4
    0.6687
    >>> print(f"{metric.score_texts(['So long, Marianne.'], ['So long, Marianne!']):.4f}")   # 5 tokens, 4 of them equal
    0.6687
    """

    higher_is_better = True
    unit = ""
    description = "how many n-grams of the predictions are in the targets (BLEU of all of them), 0 to 1"
    fields = ("predictions", "targets")
    pads_rows = True
    undefined = "there are no sequences"
    units = "words"

    def __init__(
        self,
        smoothing: str = "exp",
        value: float | None = None,
        order: int = 4,
        pad_id: int | None = None,
        eos_id: int | None = None,
        tokenize: str = "13a",
    ) -> None:
        _check_arguments(smoothing, value, order)
        self._ends = Ends("BLEU", pad_id, eos_id)
        options = {"smooth_method": smoothing, "smooth_value": value, "max_ngram_order": int(order)}
        self._of_texts, self._of_tokens = (_sacrebleu(tokenizer, options) for tokenizer in (tokenize, "none"))
        how = "" if smoothing == "exp" else f" smoothing {smoothing}" + ("" if value is None else f" {value:g}")
        how += "" if tokenize == "13a" else f" tokenizer {tokenize}"
        self.name = ("BLEU" if order == 4 else f"BLEU-{order}") + how.replace(".", ",") + self._ends.words

    def collect(self, output: Any) -> dict[str, Any]:
        """Return the tokens of integer `predictions` and `targets` `[batch, length]`; see `Ends.collect`."""
        return self._ends.collect(output)

    def compute(self, rows: dict[str, Any]) -> float:
        """Return the BLEU of token ids, from 0 to 1; NaN without sequences."""
        predicted, target = ([" ".join(map(str, ids)) for ids in side] for side in token_lists(rows))
        return _score(self._of_tokens, predicted, target)

    def score_texts(self, predictions: Sequence[str], targets: Sequence[str]) -> float:
        """Return the BLEU of texts, one target for each prediction, from 0 to 1; NaN without texts."""
        return _score(self._of_texts, predictions, targets)


def _check_arguments(smoothing: str, value: float | None, order: int) -> None:
    if smoothing not in SMOOTHINGS:
        raise LearnerError(
            f"smoothing of BLEU is {smoothing!r}: {near(str(smoothing), list(SMOOTHINGS))}",
            code="metric-bleu-smoothing-unknown",
            smoothing=smoothing,
        )
    check_int("order", order, least=1, of="BLEU", code="metric-bleu-order-value")
    if value is not None and smoothing not in ("floor", "add-k"):
        raise LearnerError(
            f"value of BLEU is {value!r}, but smoothing={smoothing!r} uses none; leave it out",
            code="metric-bleu-value-unused",
            value=value,
            smoothing=smoothing,
        )
    if value is not None and not (is_real(value) and 0 < value < math.inf):
        raise LearnerError(
            f"value of BLEU is {value!r}; it needs a positive number", code="metric-bleu-value", value=value
        )


def _sacrebleu(tokenizer: str, options: dict[str, Any]) -> Any:
    """Return sacrebleu's metric. Some of its tokenizers need another package, or a download."""
    bleu = import_optional("sacrebleu", "text", "BLEU").BLEU
    known = list(bleu.TOKENIZERS)
    if tokenizer not in known:
        raise LearnerError(
            f"tokenize of BLEU is {tokenizer!r}: {near(str(tokenizer), known)}",
            code="metric-bleu-tokenizer-unknown",
            tokenizer=tokenizer,
        )
    try:
        return bleu(tokenize=tokenizer, **options)
    except (ImportError, OSError, RuntimeError) as error:
        raise LearnerError(
            f"sacrebleu cannot load the tokenizer {tokenizer}: {error}",
            code="metric-bleu-tokenizer-failed",
            tokenizer=tokenizer,
        ) from error


def _score(bleu: Any, predictions: Sequence[str], targets: Sequence[str]) -> float:
    if not predictions:
        return math.nan
    score = float(bleu.corpus_score(predictions, [targets]).score) / 100
    return min(score, 1.0)  # 100 is rounded to 100.00000000000004
