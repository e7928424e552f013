"""Assertions about error codes."""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from learner.errors import LearnerError

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def raises_code(code: str, /, *values: str, **fields: Any) -> Iterator[pytest.ExceptionInfo[LearnerError]]:
    """Expect an error with this code, alone or among several problems, and with the given fields. `values` are user's
    names and values that the message must contain and no field holds.
    """
    with pytest.raises(LearnerError) as raised:
        yield raised
    error = raised.value
    assert code in (error.code, *error.codes), f"{error.code}: {error}"
    assert {name: error.fields.get(name) for name in fields} == fields, f"{error.fields}: {error}"
    assert [value for value in values if value not in str(error)] == [], str(error)


@contextlib.contextmanager
def named_case(case: object) -> Iterator[None]:
    """Add the name of a loop's case to its failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {str(case)[:300]}")
        raise


@functools.cache
def documented() -> Any:
    """Return the module that writes the documentation page of errors."""
    spec = importlib.util.spec_from_file_location("documented_errors", ROOT / "docs" / "errors.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
