"""Tests of populations in waves: results equal those of one population, and each wave can resume."""

import numpy as np
import optax
import pytest

from learner import Interrupter, ReduceOnPlateau
from learner.metrics import Accuracy
from learner.runs.find import find_runs
from learner.runs.layout import read_summary
from learner.runs.population import read_waves
from learner.training import waves
from learner.training.checks import population_checks
from tests.support.codes import raises_code
from tests.support.redrawn import REDRAWN
from tests.support.runs import arrays, batches, class_step, journal_of, line, model_bits, quiet, shuffled, tree_of
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")
RATES = [0.3, 0.1, 0.2, 0.01, 0.02]
NAMES = [f"{index:03d}-lr={rate}" for index, rate in enumerate(RATES)]


def lines(directory, epochs=2, *, lr=RATES, saves=False, overwrite=False, **values):
    return (
        quiet(directory, saves=saves, overwrite=overwrite)
        .metrics(Accuracy())
        .num_epochs(epochs)
        .population(lr=lr, **values)
    )


def build(builder, lr=0.1):
    return builder.build(line(3, 3), optax.sgd, lr, train_step=class_step, valid_step=class_step)


def fit(builder, train=None, valid=None, lr=0.1):
    return build(builder, lr).fit(shuffled() if train is None else train, shuffled() if valid is None else valid)


@pytest.fixture(scope="module")
def both(tmp_path_factory, compiled_once):
    directory = tmp_path_factory.mktemp("both")
    # The length of the data is unique, so that no other test has compiled the programs.
    waves, whole = (lines(directory / "waves", waves=3), lines(directory / "whole"))
    return directory / "waves", *(fit(builder, shuffled(rows=20), shuffled(rows=8)) for builder in (waves, whole))


@pytest.mark.full
def test_the_result_equals_that_of_one_population(both):
    _, result, whole = both
    assert [member.name for member in result] == NAMES
    assert [member.index for member in result] == [0, 1, 2, 3, 4]
    for member, expected in zip(result, whole, strict=True):
        assert member.values == expected.values
        for key in expected.history:
            np.testing.assert_allclose(member.history[key], expected.history[key], rtol=1e-6)
        np.testing.assert_allclose(member.model["w"], expected.model["w"], rtol=1e-5)
    for key in whole.history:
        np.testing.assert_allclose(result.history[key], whole.history[key], rtol=1e-6)
    assert result.stopped_by == "num_epochs"
    assert result.best("valid/Loss").index == whole.best("valid/Loss").index
    assert [line.split()[:3] for line in result.table().splitlines()] == [
        line.split()[:3] for line in whole.table().splitlines()
    ]
    assert result.summary("valid/Loss", over="lr")[0].count == 5
    assert result[4].evaluate(shuffled(rows=8))["Loss"] == pytest.approx(result[4].history["valid/Loss"][-1], rel=1e-5)


@pytest.mark.full
def test_each_wave_is_a_population(both):
    directory, result, _ = both
    places = [f"wave-{wave}/{name}" for wave, name in zip([1, 1, 2, 2, 3], NAMES, strict=True)]
    assert [str(member.directory.relative_to(directory)) for member in result] == places
    assert [run.directory for run in find_runs([directory])] == [directory / place for place in places]
    logs = [(directory / f"wave-{wave}" / "experiment.log").read_text() for wave in (1, 2, 3)]
    assert "wave 2 of 3: a population of 2 members" in logs[1]
    compiled = [int(log.split(" programs compiled")[0].split()[-1]) for log in logs]
    assert compiled[0] > 0 == compiled[1] < compiled[2]  # the third wave has one member


def test_wave_sizes():
    population = waves.equal_sizes
    assert [population(9, 2), population(4, 4), population(8, 3, 2)] == [[5, 4], [1] * 4, [4, 2, 2]]
    assert [waves.wave_name(n, 10) for n in (1, 10)] == ["wave-01", "wave-10"]


class Interrupting:
    """Validation data that stops the run in the second epoch of a wave, or in the third if the journal lags behind."""

    def __init__(self, interrupter, wave):
        self.interrupter, self.wave = interrupter, wave

    def __iter__(self):
        if epochs_of(self.wave):
            self.interrupter.stop("enough")
        return iter(batches(rows=10))


def epochs_of(directory):
    return [entry for entry in journal_of(directory) if entry["event"] == "epoch"] if directory.exists() else []


@pytest.mark.full
def test_waves_resume_to_the_bit(tmp_path):
    """The second wave stops before its last epoch, and the third does not start. The rates of plateaus resume, too."""

    def start(name, wave="none"):
        interrupter = Interrupter()
        builder = lines(tmp_path / name, 3, lr=RATES[:3], saves=True, waves=3).interrupter(interrupter).resume()
        return fit(
            builder,
            valid=Interrupting(interrupter, tmp_path / name / wave),
            lr=ReduceOnPlateau(0.1, "valid/Loss", patience=0),
        )

    whole = start("whole")
    first = start("run", "wave-2")
    assert len(first) == 2
    assert len(first[0].history["valid/Loss"]) == 3
    assert len(first[1].history["valid/Loss"]) < 3
    assert "enough" in first.stopped_by
    kept = tree_of(tmp_path / "run" / "wave-1")
    result = start("run")
    assert tree_of(tmp_path / "run" / "wave-1") == kept
    assert [member.history for member in result] == [member.history for member in whole]
    assert [model_bits(member.model) for member in result] == [model_bits(member.model) for member in whole]
    assert result.history == whole.history
    events = [entry["event"] for entry in journal_of(tmp_path / "run" / "wave-2")]
    assert events.count("start") == 2
    before = tree_of(tmp_path / "run")
    again = start("run")
    assert [member.history for member in again] == [member.history for member in whole]
    assert tree_of(tmp_path / "run") == before


@pytest.mark.full
def test_the_number_of_waves_depends_on_memory(tmp_path, monkeypatch):
    """A member has a few hundred bytes of state and gradients, and the shared batches have about a thousand."""
    compiled, measured = [], waves.memory_of

    def memory_of(runner, feed, loop):
        compiled.append(len(runner.lanes))
        return measured(runner, feed, loop)

    monkeypatch.setattr(waves, "memory_of", memory_of)

    def limit_to(limit):
        for module in (waves, population_checks):
            monkeypatch.setattr(module, "memory_limit", lambda device: limit)

    def sizes(limit, builder):
        limit_to(limit)
        return waves.wave_sizes(build(builder).definition, shuffled(), shuffled())

    three = lines(tmp_path / "run", 1, lr=RATES[:3], waves=True)
    assert (sizes(None, three), compiled) == ([3], [])
    assert (sizes(10**6, three), compiled) == ([3], [3])
    assert (sizes(500, three), compiled) == ([1, 1, 1], [3, 3])  # the states alone would fit
    with raises_code("population-memory", members=1, most=0):
        sizes(110, three)
    assert not (tmp_path / "run").exists()
    limit_to(500)
    assert {member.directory.parent.name for member in fit(three)} == {"wave-1", "wave-2", "wave-3"}
    assert sizes(None, three.resume()) == [1, 1, 1]  # a resumed population keeps its waves


@pytest.mark.full
def test_a_wave_that_diverges_does_not_end_the_others(tmp_path):
    result = fit(lines(tmp_path / "run", 1, lr=[1e38, 2e38, 0.1, 0.2], waves=2))
    assert [member.stopped_by.partition(":")[0] for member in result] == ["on_nonfinite"] * 2 + ["num_epochs"] * 2
    assert read_summary(tmp_path / "run" / "wave-1")["stopped_by"] == "early stopping: all 2 members have ended"


def test_unsupported_options_of_waves_are_refused(tmp_path):
    for builder in (
        lines(tmp_path / "run", waves=2).halving("valid/Loss"),
        lines(tmp_path / "run", waves=True).exploit("valid/Loss"),
        lines(tmp_path / "run", waves=6),
        lines(tmp_path / "run", lr=RATES[:4], waves=3).devices(2),
    ):
        with raises_code("population-unsupported", "waves"):
            fit(builder)
    with raises_code("builder-number-value", name="waves of population"):
        lines(tmp_path / "run", waves=0)
    with raises_code("data-read-once", "waves"):
        fit(lines(tmp_path / "run", 1, waves=2), train=iter([arrays(4)]))
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_directory_holds_either_waves_or_one_population(tmp_path):
    fit(lines(tmp_path / "waves", 1, saves=True, waves=3))
    fit(lines(tmp_path / "whole", 1, saves=True))
    before = tree_of(tmp_path)
    for builder in (
        lines(tmp_path / "waves", 1),
        lines(tmp_path / "waves", 1, waves=3),
        lines(tmp_path / "waves", 2).resume(),
    ):
        with raises_code("directory-holds-waves", directory=str(tmp_path / "waves")):
            fit(builder)
    with raises_code("directory-holds-run"):
        fit(lines(tmp_path / "whole", 1, waves=3))
    for changed in ({"waves": 2}, {"waves": 3, "lr": RATES[:4]}):
        with raises_code("resume-population-differs"):
            fit(lines(tmp_path / "waves", 2, **changed).resume())
    assert tree_of(tmp_path) == before
    # A population without waves resumes without waves.
    assert len(fit(lines(tmp_path / "whole", 1, saves=True, waves=3).resume())) == 5
    assert tree_of(tmp_path) == before


@pytest.mark.full
def test_overwriting_removes_the_previous_waves(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("mine")
    fit(lines(run, 1, lr=RATES[:3], waves=3))
    (run / "config.yaml").rename(run / "mine.txt")  # no longer has the name of a file of a run
    fit(lines(run, 1, lr=RATES[:2], waves=2, overwrite=True))
    assert sorted(path.name for path in run.iterdir()) == ["mine.txt", "wave-1", "wave-2", "waves.json"]
    assert read_waves(run) == {"wave-1": NAMES[:1], "wave-2": NAMES[1:2]}
    fit(lines(run, 1, lr=[0.3], overwrite=True))
    assert not list(run.glob("wave*"))
    fit(lines(run, 1, lr=RATES[:2], waves=2, overwrite=True))
    assert sorted(path.name for path in run.iterdir()) == ["mine.txt", "wave-1", "wave-2", "waves.json"]


@pytest.mark.full
def test_a_time_limit_applies_to_all_waves(tmp_path):
    """The first wave reaches the limit."""
    result = fit(lines(tmp_path / "run", 10**6, waves=3).with_time_limit(0.5))
    assert len(result) == 2
    assert result.stopped_by.startswith("time")


@pytest.mark.parametrize("data", some(REDRAWN, REDRAWN[:2]))
def test_each_wave_reads_the_same_data(tmp_path, data):
    """Otherwise the waves cannot be compared, and one that resumes in a new process has other numbers."""
    members = fit(lines(tmp_path / "waves", 1, lr=[0.1, 0.2], waves=2), data(), batches(8))
    for member, lr in zip(members, (0.1, 0.2), strict=True):
        alone = build(quiet(tmp_path / f"{lr}").num_epochs(1), lr).fit(data(), batches(8))
        np.testing.assert_allclose(member.history["train/Loss"], alone.history["train/Loss"], rtol=1e-6)
        np.testing.assert_allclose(member.model["w"], alone.model["w"], rtol=1e-5)
