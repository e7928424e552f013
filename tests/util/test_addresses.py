"""Addresses of object stores are refused where a directory is expected, before anything is trained or read."""

from pathlib import Path

import pytest

from learner import Checkpointer, LearnerBuilder, load_checkpoint
from learner.loggers import RunMirror
from tests.support.codes import raises_code


def test_run_directory_cannot_be_an_address():
    with raises_code("directory-address", "RunMirror", place="s3://bucket/run"):
        LearnerBuilder("s3://bucket/run")


USES = [
    lambda place: LearnerBuilder("runs/digits").with_file_checkpointer(directory=place),
    Checkpointer,
    lambda place: load_checkpoint(place, "best", {"w": 0.0}),
]


@pytest.mark.parametrize("use", [*USES, LearnerBuilder, RunMirror])
def test_address_as_a_path_is_refused_and_makes_no_directory(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises_code("address-path", place="s3:/bucket/run"):
        use(Path("s3://bucket/run"))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("use", [USES[0], LearnerBuilder("runs/digits").compilation_cache])
def test_other_values_are_refused(use):
    with raises_code("path-type"):
        use(False)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("character", "*?[#")
def test_address_with_a_wildcard_is_refused(use, character):
    """gcsfs expands wildcards: removing `run*/4` would also remove `run1/4` and `run2/4`."""
    with raises_code("checkpoint-address-special", place=f"gs://bucket/run{character}"):
        use(f"gs://bucket/run{character}")


@pytest.mark.parametrize("use", USES)
def test_store_that_orbax_cannot_write_to_is_refused(use, monkeypatch):
    with raises_code("checkpoint-address", "RunMirror", place="s3://bucket/run"):
        use("s3://bucket/run")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises_code("package-missing", package="gcsfs"):
        use("gs://bucket/run")
