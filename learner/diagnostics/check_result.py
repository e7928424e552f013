"""The result of `Learner.check`: an answer to each question. This module does not import JAX."""

import dataclasses
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from learner.util.json_values import encode
from learner.util.text import count, printable, short

OK, WARNING, FAILED, SKIPPED = VERDICTS = ("ok", "warning", "failed", "skipped")
COLUMNS = 14, 9, 10  # of the name, the verdict and the number
WIDTH = 120


class Question(NamedTuple):
    """A question of `Learner.check`.

    Attributes:
      name: the name by which the question is selected or skipped.
      cost: the work needed for an answer.
      about: the question.
    """

    name: str
    cost: str
    about: str


QUESTIONS = (
    Question("overlap", "reads the data", "rows that training and validation data share"),
    Question("initial-loss", "1 forward pass", "loss before training, compared with a uniform guess"),
    Question("eval-mode", "3 forward passes", "the valid step repeats its outputs"),
    Question("train-mode", "2 forward passes", "the loss differs between train and eval mode"),
    Question("row-leak", "2 forward passes", "the output for a row depends on other rows of its batch"),
    Question("metrics", "1 forward pass", "metrics of parts of a batch, merged, equal those of the whole"),
    Question("gradients", "4 steps", "parameters that get no gradient"),
    Question("determinism", "2 steps", "a repeated step has the same bits"),
    Question("one-batch", "100 steps", "the loss of one batch falls"),
    Question("label-shuffle", "200 steps", "the validation loss is higher after training on shuffled labels"),
    Question("learning-rate", "100 steps", "the highest learning rate, compared with a range test"),
    Question("pipeline", "8 batches, 8 steps", "reading a batch takes less time than a step"),
    Question("memory", "compiles the run", "memory of the compiled training, compared with the device's"),
)
"""All questions in the order in which they are asked, cheap ones first."""


class Finding(NamedTuple):
    """The result of a question: an `Answer` without its name."""

    verdict: str
    number: float | None
    text: str


def skipped(reason: str) -> Finding:
    """Return the finding of a question that does not apply."""
    return Finding(SKIPPED, None, reason)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one question of `Learner.check`.

    Attributes:
      name: the name of the question.
      verdict: `"ok"`, `"warning"`, `"failed"`, or `"skipped"` if the question does not apply.
      number: the measured number; the guide lists its meaning for each question. None if skipped.
      text: one sentence: the finding, and the remedy.

    >>> print(Answer("overlap", "failed", 12.0, "12 of 100 validation rows are in the training data."))
    overlap       failed           12  12 of 100 validation rows are in the training data.
    """

    name: str
    verdict: str
    number: float | None
    text: str

    def __str__(self) -> str:
        """Return the answer as a row of the table, on several lines if it is long."""
        name, verdict, number = COLUMNS
        value = "-" if self.number is None else short(self.number)
        head = f"{self.name:<{name}}{self.verdict:<{verdict}}{value:>{number}}  "
        indent = " " * len(head)
        return textwrap.fill(printable(self.text), WIDTH, initial_indent=head, subsequent_indent=indent)


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """The result of a check of a learner, which `Learner.check` returns. `print` shows it as a table.

    Attributes:
      answers: the answers, in the order of the questions.

    >>> result = CheckResult((Answer("gradients", "ok", 0.0, "All 2 parameters get gradients."),))
    >>> result.ok, result["gradients"].verdict
    (True, 'ok')
    >>> print(result)
    question      verdict      number  finding
    gradients     ok                0  All 2 parameters get gradients.
    <BLANKLINE>
    1 ok
    """

    answers: tuple[Answer, ...]

    @property
    def ok(self) -> bool:
        """True if no answer is `"failed"`. Warnings do not count."""
        return all(answer.verdict != FAILED for answer in self.answers)

    def __getitem__(self, name: str) -> Answer:
        """Return the answer to a question. Raise `KeyError` if it was not asked."""
        return {answer.name: answer for answer in self.answers}[name]

    def to_json(self) -> dict[str, Any]:
        """Return the result as values that JSON can represent: `ok`, and `answers`, each a dict of its attributes.

        >>> CheckResult((Answer("one-batch", "failed", float("nan"), "The loss is NaN."),)).to_json()["answers"]
        [{'name': 'one-batch', 'verdict': 'failed', 'number': 'NaN', 'text': 'The loss is NaN.'}]
        """
        answers: list[dict[str, Any]] = encode([dataclasses.asdict(answer) for answer in self.answers])
        return {"ok": self.ok, "answers": answers}

    def __str__(self) -> str:
        """Return the answers as a table, and the number of each verdict."""
        return "\n".join([heading(), *map(str, self.answers), "", summary(self.answers)])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        from learner.util.fragments import fragment, paragraph, table  # imports NumPy, which the help does not need

        rows = [[a.name, a.verdict, "" if a.number is None else short(a.number), a.text] for a in self.answers]
        head = ["question", "verdict", "number", "finding"]
        return fragment(table(head, rows), paragraph(summary(self.answers)))


def heading() -> str:
    """Return the first line of the table."""
    name, verdict, number = COLUMNS
    return f"{'question':<{name}}{'verdict':<{verdict}}{'number':>{number}}  finding"


def summary(answers: Iterable[Answer]) -> str:
    """Return the number of answers of each verdict.

    >>> summary([Answer("a", "ok", 1.0, ""), Answer("b", "warning", 1.0, ""), Answer("c", "warning", 1.0, "")])
    '1 ok, 2 warnings'
    """
    verdicts = [answer.verdict for answer in answers]
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    parts = [
        count(number, verdict) if verdict == WARNING else f"{number} {verdict}"
        for verdict, number in counts.items()
        if number
    ]
    return ", ".join(parts)
