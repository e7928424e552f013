"""Addresses of stores where directories are expected: refused before anything is trained or read."""

import pytest

from learner import Checkpointer, LearnerBuilder, load_checkpoint
from tests.support.codes import raises_code


def test_a_run_writes_to_a_directory():
    with raises_code("directory-address", "RunMirror", place="s3://bucket/run"):
        LearnerBuilder("s3://bucket/run")


@pytest.mark.parametrize(
    "use",
    [
        lambda place: LearnerBuilder("runs/digits").with_file_checkpointer(directory=place),
        Checkpointer,
        lambda place: load_checkpoint(place, "best", {"w": 0.0}),
    ],
)
def test_stores_that_orbax_cannot_write_to(use, monkeypatch):
    with raises_code("checkpoint-address", "RunMirror", place="s3://bucket/run"):
        use("s3://bucket/run")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises_code("package-missing", package="gcsfs"):
        use("gs://bucket/run")
