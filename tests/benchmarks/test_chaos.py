"""Tests of the chaos benchmark: killed runs equal the undisturbed run, and differences are reported."""

import importlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
EPOCHS = 10  # 30 steps, saved after 15, 16 and 30


@pytest.fixture(scope="module")
def benchmarks():
    """Return a module of the benchmarks, which are not part of the package."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.syspath_prepend(str(ROOT))
        yield lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def whole(benchmarks, tmp_path_factory):
    """The directory of a small run that was trained in this process."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    benchmarks("victim").train(directory, 0, EPOCHS)
    return directory


@pytest.fixture(scope="module")
def undisturbed(benchmarks, tmp_path_factory):
    """Return the directory of a run by an undisturbed process, and its facts."""
    chaos = benchmarks("chaos")
    work = tmp_path_factory.mktemp("chaos")
    return work, chaos.Chaos(work, chaos.own_run(epochs=EPOCHS)).undisturbed()


@pytest.mark.full
def test_killed_run_equals_the_undisturbed_one(benchmarks, undisturbed):
    chaos, (work, left) = benchmarks("chaos"), undisturbed
    assert {"checkpoint/30: progress", "train/epoch-1/Order.log", "summary.json"} < left.facts.keys()
    killed = chaos.Chaos(work, chaos.own_run(epochs=EPOCHS))
    killed.run(left.facts, [chaos.Moment(0.0), chaos.Moment(0.0, save=1), chaos.Moment(0.02, save=2)])
    tally = killed.tally
    assert tally.good, tally.report()
    assert (tally.kills, tally.resumes, tally.runs) == (3, 3, 1)
    assert tally.before_first >= 1
    assert tally.unfinished >= 1


@pytest.mark.full
def test_differences_are_reported(benchmarks, undisturbed):
    """The run resumes with other data, without its checkpoints, and with a journal without saves."""
    chaos, (work, left) = benchmarks("chaos"), undisturbed

    def commands(directory):
        shutil.rmtree(directory / "checkpoint", ignore_errors=True)
        if (journal := directory / "journal.jsonl").exists():
            lines = journal.read_text().splitlines(keepends=True)
            journal.write_text("".join(line for line in lines if '"save"' not in line))
        return chaos.own_run(seed=int(directory.exists()), epochs=EPOCHS)(directory)

    wrong = chaos.Chaos(work, commands)
    wrong.run(left.facts, [chaos.Moment(0.0, save=3)])
    assert not wrong.tally.good
    lines = wrong.tally.report()
    assert re.fullmatch("  went on from step 0; there was a checkpoint of step 1[56]", lines[-1])
    names = " ".join(wrong.tally.differing)
    for name in ("model['params']", "optim['opt_state']", "in_flight['rows']", "progress", "history", "Order.log"):
        assert name in names, name
    assert {"summary.json", "journal.jsonl: numbers"} < wrong.tally.differing.keys()
    assert "checkpoint/30: model" in names
    assert "checkpoint/30: scheduler" not in names  # the rate does not depend on the seed, and the best epoch does
    assert f"  {'differing bytes':<52} {sum(wrong.tally.differing.values())}   goal 0" in lines


@pytest.mark.full
def test_failing_process_is_reported(benchmarks, tmp_path):
    chaos = benchmarks("chaos")
    failing = chaos.Chaos(tmp_path, lambda directory: ["learner", "resume", str(tmp_path / "no run")])
    failing.run({}, [chaos.Moment(0.0)])
    (failure,) = failing.tally.failures
    assert "a process ended with 2" in failure
    assert "there is no directory" in failure
    assert (failing.tally.kills, failing.tally.runs) == (0, 0)


# -- what is compared --------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.full
def test_times_and_other_lines_are_not_compared(benchmarks, copied):
    chaos = benchmarks("chaos")
    expected = chaos.facts(copied)
    changed(copied / "journal.jsonl", '"time": 1', '"time": 2')
    with (copied / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"event": "start", "time": 0.0, "epoch": 7, "step": 30, "resumed": True}) + "\n")
    assert chaos.differing(chaos.facts(copied), expected) == {}


NUMBERS = '"values": {"train/Accuracy": '


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "old", "new", "names"),
    [
        ("train/epoch-2/Loss.log", ",", ";", {"train/epoch-2/Loss.log"}),
        ("summary.json", '"steps": 30', '"steps": 31', {"summary.json"}),
        ("journal.jsonl", NUMBERS, f"{NUMBERS}-", {"history", "journal.jsonl: numbers"}),
    ],
)
def test_changed_file_is_detected(benchmarks, copied, path, old, new, names):
    chaos = benchmarks("chaos")
    expected = chaos.facts(copied)
    changed(copied / path, old, new)
    assert chaos.differing(chaos.facts(copied), expected).keys() == names


@pytest.mark.full
def test_missing_and_incomplete_checkpoints_are_detected(benchmarks, copied):
    chaos = benchmarks("chaos")
    expected = chaos.facts(copied)
    (copied / "checkpoint" / "20.orbax-checkpoint-tmp").mkdir()
    assert list(chaos.differing(chaos.facts(copied), expected)) == ["checkpoint: directories"]
    shutil.rmtree(copied / "checkpoint" / "16")
    names = set(chaos.differing(chaos.facts(copied), expected))
    assert {"checkpoint: directories", "checkpoint/16: progress"} < names


def test_differing_bytes(benchmarks):
    differing = benchmarks("chaos").differing
    assert differing({"a": b"1234", "b": b"12"}, {"a": b"1234", "b": b"12"}) == {}
    assert differing({"a": b"1234", "b": b"12"}, {"a": b"1034", "b": b"0299"}) == {"a": 1, "b": 3}
    assert differing({"a": b"123", "b": b""}, {}) == {"a": 3, "b": 1}
    assert differing({}, {"c": b"12"}) == {"c": 2}


# -- when it is killed -------------------------------------------------------------------------------------------------


def test_moments(benchmarks):
    chaos = benchmarks("chaos")
    first, again, other = (list(itertools.islice(chaos.moments(s, 8.0, 0.5), 200)) for s in (3, 3, 4))
    assert first == again != other
    anywhere, saves = ([m for m in first if (m.save is None) == plain] for plain in (True, False))
    assert len(anywhere) == len(saves) == 100
    assert 0 <= min(m.seconds for m in anywhere) < 0.8 < 7.2 < max(m.seconds for m in anywhere) <= 8
    assert {m.save for m in saves} == {1, 2, 3, 4}
    assert max(m.seconds for m in saves) <= 0.5


def test_checkpoint_directories_are_distinguished_by_time(benchmarks, tmp_path):
    """An incomplete directory that was removed and created again is another one; a complete one only loses files while
    it is removed.
    """
    seen = benchmarks("chaos").seen
    assert seen(tmp_path / "nothing") == {}
    (tmp_path / "8").mkdir()
    (tmp_path / "9.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "a file").touch()
    before = seen(tmp_path)
    assert before.keys() == {"8", "9.orbax-checkpoint-tmp"}
    (tmp_path / "8" / "model").mkdir()
    assert seen(tmp_path) == before
    (tmp_path / "9.orbax-checkpoint-tmp" / "model").mkdir()
    assert [name for name, _ in seen(tmp_path).items() - before.items()] == ["9.orbax-checkpoint-tmp"]


def test_a_config_is_run_by_the_command(benchmarks, tmp_path):
    words = benchmarks("chaos").config_run("a.yaml")
    assert words(tmp_path) == ["learner", "fit", "a.yaml", f"--directory={tmp_path}", "--resume=true"]
    (tmp_path / "config.yaml").touch()
    assert words(tmp_path) == ["learner", "resume", str(tmp_path)]


@pytest.mark.full
@pytest.mark.parametrize("config", [[], ["--config", "configs/regression.yaml"]], ids=["own", "config"])
def test_the_command(tmp_path, config):
    command = [sys.executable, "-m", "benchmarks.chaos", "--kills", "4", "--directory", str(tmp_path), *config]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n  {'kills':<52} 4\n" in done.stdout
    assert f"\n  {'differing bytes':<52} 0   goal 0\n" in done.stdout
    assert (tmp_path / "run" / "summary.json").exists()
