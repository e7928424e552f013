"""The programs of steps are compiled once."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(compiled_once):
    """Many tests train the same small models."""
