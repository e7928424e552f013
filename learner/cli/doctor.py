"""`learner doctor`: questions about a run before it trains."""

import json
from collections.abc import Sequence

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_yaml, value_of
from learner.cli.usage import doctor_parser
from learner.diagnostics.check_result import Answer, heading, summary

OPTIONS = ("only", "skip", "steps", "json")


def doctor(words: Sequence[str]) -> int:
    """`learner doctor CONFIG [--only=NAME,...] [--skip=NAME,...] [--steps=N] [--json] [--KEY=VALUE ...]`."""
    line = doctor_parser().read(words)
    learner = RunConfig(apply_overrides(read_yaml(line.config), line.overrides), beside=OPTIONS).learner()
    own = {} if line.steps is None else {"steps": value_of(line.steps)}
    names = {"only": _names(line.only), "skip": _names(line.skip)}
    if line.json:
        result = learner.check(**names, **own)
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
        return 0 if result.ok else 1
    answers: list[Answer] = []

    def show(answer: Answer) -> None:
        if not answers:
            print(heading())
        answers.append(answer)
        print(answer, flush=True)

    result = learner.check(**names, **own, on_answer=show)
    print(f"\n{summary(answers)}")
    return 0 if result.ok else 1


def _names(text: str | None) -> list[str]:
    """Return the names in a comma-separated list.

    >>> _names("overlap, memory"), _names(None)
    (['overlap', 'memory'], [])
    """
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]
