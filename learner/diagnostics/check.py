"""The check of a learner before training: a few minutes of questions."""

from collections.abc import Callable, Sequence
from typing import Any

from learner.diagnostics.check_result import QUESTIONS, Answer, CheckResult, Finding, Question
from learner.diagnostics.check_trial import CheckTrial, open_trial
from learner.diagnostics.data_questions import overlap, pipeline
from learner.diagnostics.learning_questions import label_shuffle, learning_rate, one_batch
from learner.diagnostics.metric_questions import metrics
from learner.diagnostics.output_questions import eval_mode, initial_loss, row_leak, train_mode
from learner.diagnostics.step_questions import determinism, gradients, memory
from learner.distributed.process_group import hosts
from learner.errors import LearnerError, Problem, near, one_error
from learner.training.definition import TrainingDefinition
from learner.util.number_checks import is_int
from learner.util.several import as_several

FUNCTIONS: dict[str, Callable[[CheckTrial], Finding]] = {
    "overlap": overlap,
    "initial-loss": initial_loss,
    "eval-mode": eval_mode,
    "train-mode": train_mode,
    "row-leak": row_leak,
    "metrics": metrics,
    "gradients": gradients,
    "determinism": determinism,
    "one-batch": one_batch,
    "label-shuffle": label_shuffle,
    "learning-rate": learning_rate,
    "pipeline": pipeline,
    "memory": memory,
}
"""The functions that answer `QUESTIONS`."""


def check(
    definition: TrainingDefinition,
    train: Any,
    valid: Any,
    *,
    only: str | Sequence[str],
    skip: str | Sequence[str],
    steps: int,
    on_answer: Callable[[Answer], None],
    clock: Callable[[], float],
) -> CheckResult:
    """Ask the questions; see `Learner.check`. `clock` returns the time in seconds."""
    questions = selected_questions(only, skip, steps)
    if hosts().count > 1:
        raise LearnerError(
            "check runs in one process; leave out the arguments that connect several", code="process-check-several"
        )
    answers = []
    with open_trial(definition, train, valid, steps, clock) as trial:
        for question in questions:
            answer = Answer(question.name, *FUNCTIONS[question.name](trial))
            answers.append(answer)
            on_answer(answer)
    return CheckResult(tuple(answers))


def selected_questions(only: str | Sequence[str], skip: str | Sequence[str], steps: int) -> list[Question]:
    """Return the questions to ask. Raise one `LearnerError` with all problems of the arguments of `Learner.check`.

    >>> [question.name for question in selected_questions(["memory", "overlap"], ["memory"], 100)]
    ['overlap']
    """
    only, skip = (tuple(as_several(names)) for names in (only, skip))
    names = [question.name for question in QUESTIONS]
    problems = [
        Problem(f"there is no question {name!r}: {near(str(name), names)}", code="check-question-unknown", name=name)
        for name in (*only, *skip)
        if name not in names
    ]
    if not is_int(steps) or steps < 1:
        problems.append(Problem(f"steps is {steps!r}; it needs a whole number, 1 or more", code="check-steps-value"))
    questions = [q for q in QUESTIONS if (not only or q.name in only) and q.name not in skip]
    if not problems and not questions:
        problems.append(Problem("only and skip leave no question", code="check-question-none"))
    if problems:
        raise one_error(problems, "the learner cannot be checked", code="check-arguments")
    return questions
