"""Tests of profiling a range of steps of a run: files, failures and the command."""

import gzip
import json

import jax
import pytest

from learner.cli.main import main
from learner.metrics import IterationSpeed
from learner.training.files.directory import remove_run
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, quiet

pytestmark = pytest.mark.usefixtures("compiled_once")

PARTS = ("device", "data", "listeners", "host")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, compiled_once):
    directory = tmp_path_factory.mktemp("profiled") / "run"
    result = build_line(quiet(directory).num_epochs(4).profile((5, 12))).fit(batches())
    return directory, result


@pytest.mark.full
def test_a_run_writes_a_profile_and_a_trace(profiled):
    directory, result = profiled
    profile = json.loads((directory / "profile" / "profile.json").read_text())
    assert (profile["first"], profile["last"]) == (5, 12)
    assert sum(profile[part] for part in PARTS) == pytest.approx(profile["seconds"])
    assert 0 < profile["device"] <= profile["seconds"]
    assert sum(operation["seconds"] for operation in profile["operations"]) >= 0.5 * profile["device"]
    (trace,) = directory.glob("profile/plugins/profile/*/perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert len(list(directory.glob("profile/plugins/profile/*/*.xplane.pb"))) == 1
    log = (directory / "experiment.log").read_text()
    assert "profile: steps 6 to 12: " in log
    assert "profile" in result.summary["artifacts"]


@pytest.mark.full
def test_profiling_changes_no_number(profiled, tmp_path):
    plain = build_line(quiet(tmp_path / "run").num_epochs(4)).fit(batches())
    assert plain.history == profiled[1].history


def test_the_profile_is_removed_with_the_run(profiled, tmp_path):
    directory = profiled[0]
    (directory / "profile" / "mine.txt").write_text("mine")
    remove_run(directory)
    assert [path.name for path in directory.rglob("*")] == ["profile", "mine.txt"]


def test_a_run_that_ends_before_the_range_logs_it(tmp_path):
    build_line(quiet(tmp_path / "run").num_epochs(1).profile((1000, 1010))).fit(batches())
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert "no step was profiled: the run ended before step 1001" in log
    assert not (tmp_path / "run" / "profile").exists()


@pytest.mark.full
def test_a_trace_that_is_already_open_is_kept(tmp_path):
    with jax.profiler.trace(tmp_path / "theirs"):
        build_line(quiet(tmp_path / "run").num_epochs(1).profile((1, 3))).fit(batches())
    assert "no step was profiled: " in (tmp_path / "run" / "experiment.log").read_text()
    assert list((tmp_path / "theirs").rglob("*.xplane.pb"))


def test_an_unwritable_profile_does_not_fail_the_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").write_text("a file")
    result = build_line(quiet(tmp_path / "run").num_epochs(2).profile((2, 4))).fit(batches())
    assert result.stopped_by == "num_epochs"
    assert "no step was profiled: the directory" in (tmp_path / "run" / "experiment.log").read_text()
    with raises_code("profile-refused", "is a file"):
        build_line(quiet(tmp_path / "other")).profile(batches(), directory=tmp_path / "run" / "profile")


@pytest.mark.full
def test_the_profile_ends_at_a_validation_or_hook(tmp_path):
    for name, build in (
        ("valid", lambda builder: builder.valid_every(steps=4)),
        ("hook", lambda builder: builder.every(4, lambda info, model: None)),
    ):
        directory = tmp_path / name
        build_line(build(quiet(directory).num_epochs(2).profile((1, 6)))).fit(batches(), batches())
        profile = json.loads((directory / "profile" / "profile.json").read_text())
        assert (profile["first"], profile["last"]) == (1, 4)


@pytest.mark.full
def test_a_failing_metric_leaves_no_trace_open(tmp_path):
    class Fails(IterationSpeed):
        def update(self, steps, seconds):
            self.steps = getattr(self, "steps", 0) + steps
            if self.steps >= 4:
                raise RuntimeError("no")
            return 0.0

    build = quiet(tmp_path / "run").num_epochs(2).profile((2, 4)).metrics(Fails())
    with pytest.raises(RuntimeError, match="no"):
        build_line(build).fit(batches())
    with jax.profiler.trace(tmp_path / "next"):
        pass


@pytest.mark.parametrize("steps", [(3, 9), pytest.param((3, None), marks=pytest.mark.full)])
def test_a_run_that_resumes_behind_the_range_logs_it(tmp_path, steps):
    builder = lambda: quiet(tmp_path / "run").with_file_checkpointer()  # noqa: E731
    build_line(builder().num_epochs(2)).fit(batches())
    build_line(builder().num_epochs(3).profile(steps).resume()).fit(batches())
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert log.count("no step was profiled: the run has resumed after step 12") == 1


@pytest.mark.full
def test_a_complete_profile_is_not_repeated_on_resume(tmp_path):
    def build(epochs):
        return quiet(tmp_path / "run").num_epochs(epochs).profile((2, None)).with_file_checkpointer()

    build_line(build(4)).fit(batches())
    before = (tmp_path / "run" / "profile" / "profile.json").read_text()
    build_line(build(6).resume()).fit(batches())
    assert (tmp_path / "run" / "profile" / "profile.json").read_text() == before
    assert "no step was profiled" not in (tmp_path / "run" / "experiment.log").read_text()


@pytest.mark.full
def test_a_failing_hook_leaves_no_trace_open(tmp_path):
    def fails(info, model):
        raise RuntimeError("no")

    build = quiet(tmp_path / "run").num_epochs(2).profile((1, 1000)).every(3, fails)
    with pytest.raises(RuntimeError, match="no"):
        build_line(build).fit(batches())
    with jax.profiler.trace(tmp_path / "next"):  # raises if a trace is open
        pass


@pytest.mark.full
def test_learner_profile_needs_no_run(tmp_path):
    learner = build_line(quiet(tmp_path / "run").num_epochs(2))
    profile = learner.profile(batches(), steps=(3, 8), directory=tmp_path / "there")
    assert (profile.first, profile.last) == (3, 8)
    assert (tmp_path / "there" / "profile.json").exists()
    assert not (tmp_path / "run").exists()
    again = learner.profile(batches(), steps=(2, None), directory=tmp_path / "there")
    assert again.last >= 2 + 10
    assert learner.fit(batches()).summary["epochs"] == 2
    with raises_code("profile-steps-value"):
        learner.profile(batches(), steps=(8, 3))


@pytest.mark.full
def test_the_profile_command(tmp_path, capsys):
    assert main(["profile", "configs/digits.yaml", "--steps=[2,6]", f"--output={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("steps 3 to 6: ")
    assert f"trace: {tmp_path} (TensorBoard;" in shown
    assert main(["profile"]) == 2
    assert main(["profile", "configs/digits.yaml", "--stpes=[2,6]"]) == 2
    assert "steps" in capsys.readouterr().err
