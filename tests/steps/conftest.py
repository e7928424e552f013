"""Share compiled programs between the tests of steps."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(compiled_once):
    """Many tests train the same small models, so their programs are cached on disk."""
