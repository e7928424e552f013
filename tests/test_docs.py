"""What the documents say exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "reliability.md").read_text()


def test_every_test_that_is_named_exists():
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    defined = set(re.findall(r"def (test_\w+)\(", code)) | {path.name for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"`(?:tests/)?(?:\w+/)*(test_\w+(?:\.py)?)(?:\[\w+\])?`", DOCUMENT))
    assert len(named) > 40
    assert named - defined == set()
