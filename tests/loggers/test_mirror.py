"""Tests of RunMirror, which copies a run while it trains, with fsspec's store in memory."""

import contextlib
import json

import fsspec
import numpy as np
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

from learner.events import Saved
from learner.loggers import RunMirror
from learner.runs.remote import RemoteRun
from tests.support.codes import raises_code
from tests.support.logged import played, started
from tests.support.runs import batches, build_line, journal_of, logs_of, quiet

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def url(tmp_path):
    yield f"memory://{tmp_path.name}/run"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


def fit(directory, url, epochs, **options):
    builder = quiet(directory, saves=True).metric_loggers(RunMirror(url)).num_epochs(epochs)
    builder.with_file_checkpointer(keep_last=1, keep_best=0)
    if options:
        builder.resume()
    return build_line(builder).fit(batches(), batches())


@pytest.mark.full
def test_resuming_from_the_copy_is_exact(tmp_path, url):
    whole = build_line(quiet(tmp_path / "whole").num_epochs(3)).fit(batches(), batches())
    fit(tmp_path / "first", url, 2)
    RemoteRun(url).download(tmp_path / "second")
    resumed = fit(tmp_path / "second", url, 3, resume=True)
    np.testing.assert_array_equal(resumed.model["w"], whole.model["w"])
    assert logs_of(tmp_path / "second") == logs_of(tmp_path / "whole")
    RemoteRun(url).download(tmp_path / "third")
    assert journal_of(tmp_path / "third") == journal_of(tmp_path / "second")
    assert json.loads((tmp_path / "third" / "summary.json").read_text())["epochs"] == 3
    assert [path.name for path in (tmp_path / "third" / "checkpoint").iterdir()] == ["18"]


def test_store_that_is_unavailable_for_a_while(tmp_path, url, monkeypatch):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(batches())
    pauses, pipe, failures = [], MemoryFileSystem.pipe_file, [ConnectionResetError(104, "reset")] * 3

    def unavailable(self, path, *args, **kw):
        if failures:
            raise failures.pop()
        pipe(self, path, *args, **kw)

    mirror = RunMirror(url, retries=2, sleep=pauses.append)
    mirror.on_event(started(tmp_path / "run"))
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", unavailable)
    saved = Saved(1.0, 1, 6, tmp_path / "run" / "checkpoint" / "6", 0.1)
    with pytest.warns(UserWarning, match="tried again at the next checkpoint"):
        mirror.on_event(saved)
    assert pauses == [1.0, 2.0]
    mirror.on_event(saved)
    RemoteRun(url).download(tmp_path / "back")
    assert journal_of(tmp_path / "back") == journal_of(tmp_path / "run")
    failures += [ConnectionResetError(104, "reset")] * 3
    (tmp_path / "run" / "summary.json").write_text("{}")
    with pytest.raises(ConnectionResetError):  # no later copy: the run reports it
        mirror.close()


@pytest.mark.parametrize("method", ["exists", "find"])
def test_first_and_last_copy_are_retried(tmp_path, url, monkeypatch, method):
    """The check before the first copy and the last copy are retried too: no later checkpoint would do it."""
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(1)).fit(batches())
    pauses, call, failures = [], getattr(MemoryFileSystem, method), [ConnectionResetError(104, "reset")]

    def unavailable(self, *args, **kw):
        if failures:
            raise failures.pop()
        return call(self, *args, **kw)

    mirror = RunMirror(url, sleep=pauses.append)
    monkeypatch.setattr(MemoryFileSystem, method, unavailable)
    mirror.on_event(started(tmp_path / "run"))
    mirror.close()
    assert pauses == [1.0]
    RemoteRun(url).download(tmp_path / "back")
    assert journal_of(tmp_path / "back") == journal_of(tmp_path / "run")


@pytest.mark.parametrize("place", ["/scratch", "gs://bucket/run"])
def test_one_warning_for_checkpoints_outside_the_run_directory(tmp_path, url, place):
    (tmp_path / "run").mkdir()
    mirror, saved = RunMirror(url), Saved(1.0, 1, 6, epath.Path(place) / "6", 0.1)
    mirror.on_event(started(tmp_path / "run"))
    with pytest.warns(UserWarning, match=f"{url} gets no checkpoints, as they are in {place}, outside"):
        mirror.on_event(saved)
    mirror.on_event(saved)  # a second warning would be an error


@pytest.mark.full
def test_copy_of_another_run_is_not_replaced(tmp_path, url):
    fit(tmp_path / "first", url, 1)
    with raises_code("remote-holds-another", url=url):
        RunMirror(url).on_event(started(tmp_path / "other"))
    RemoteRun(url).download(tmp_path / "back")
    assert journal_of(tmp_path / "back") == journal_of(tmp_path / "first")


def test_run_that_never_began_is_not_copied(tmp_path, url):
    played(RunMirror(url))
    assert not fsspec.filesystem("memory").exists(url)


def test_wrong_arguments(tmp_path):
    (tmp_path / "file").write_text("")
    with raises_code("remote-unwritable"):
        RunMirror(tmp_path / "file" / "copy")
    with raises_code("logger-mirror-seconds"):
        RunMirror(tmp_path / "copy", seconds=0)


def test_members_of_a_population_are_refused(tmp_path, url):
    (tmp_path / "population.json").write_text("{}")
    with raises_code("logger-mirror-population"):
        RunMirror(url).on_event(started(tmp_path / "000"))


@pytest.mark.filterwarnings("error::learner.util.user_warnings.LearnerWarning")
def test_failed_copy_is_tried_again_even_if_warnings_are_errors(tmp_path, url, monkeypatch):
    copies = []

    def upload(self, directory):
        copies.append(directory)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RemoteRun, "upload", upload)
    (tmp_path / "run").mkdir()
    mirror = RunMirror(url, retries=0)
    mirror.on_event(started(tmp_path / "run"))
    for step in (6, 12):
        mirror.on_event(Saved(1.0, 1, step, tmp_path / "run" / "checkpoint" / str(step), 0.1))
    assert len(copies) == 2
