"""Tests of checkpoint files that are truncated, damaged, or cannot be written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import learner
from learner.checkpoint import CheckpointStore, DamagedError
from learner.errors import LearnerError
from tests.support.codes import raises_code
from tests.support.disks import SaverEvents
from tests.support.runs import (
    batches,
    bits,
    build_line,
    journal_of,
    logs_of,
    quiet,
    saved_steps,
    shuffled,
    tree_of,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {"truncated": lambda p: p.write_bytes(p.read_bytes()[:-1]), "flipped": flip, "deleted": lambda p: p.unlink()}


def build(directory, epochs=3):
    return build_line(quiet(directory).num_epochs(epochs).with_file_checkpointer(keep_last=3).resume())


@pytest.fixture(scope="module")
def three(tmp_path_factory, compiled_once):
    """A run of three epochs with all its checkpoints."""
    directory = tmp_path_factory.mktemp("three") / "run"
    build(directory).fit(shuffled(), valid_data())
    return directory


@pytest.fixture
def copy(three, tmp_path):
    shutil.copytree(three, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def four(tmp_path_factory, compiled_once):
    """A run of four epochs that was never damaged."""
    directory = tmp_path_factory.mktemp("four") / "run"
    build(directory, 4).fit(shuffled(), valid_data())
    return directory


FILES = ("manifest.json", "progress/metadata", "state/manifest.ocdbt")


@pytest.mark.parametrize(
    ("name", "how"), some([*zip(FILES, DAMAGES, strict=True), (FILES[0], "deleted")], {(FILES[1], "flipped")})
)
def test_truncate_each_file(copy, four, name, how):
    """`resume` starts from the previous checkpoint, warns, and ends like an undamaged run. `test_store.py` checks that
    every damage to every file is detected.
    """
    DAMAGES[how](copy / "checkpoint" / "18" / name)
    build(copy, 4).fit(shuffled(), valid_data())
    log = (copy / "experiment.log").read_text()
    (warning,) = [line for line in log.splitlines() if "WARNING" in line]
    assert f"{copy}/checkpoint/18 is damaged: {name}" in warning
    assert "resumes from the checkpoint of step 12" in warning
    assert (copy / "superseded" / "1" / "checkpoint" / "18").is_dir()
    assert logs_of(copy) == logs_of(four)
    assert saved_steps(copy) == saved_steps(four)
    assert [line["step"] for line in journal_of(copy) if line["event"] == "start"] == [0, 12]


@pytest.mark.parametrize("requested", [{"epoch": 3}, {"step": 18}, {"epoch": "latest"}])
def test_flip_one_byte(copy, requested):
    """A checkpoint requested by name is not replaced by another."""
    flip(copy / "checkpoint" / "18" / "state" / "_METADATA")
    before = tree_of(copy)
    learner = build_line(quiet(copy).num_epochs(4).with_file_checkpointer(keep_last=3).checkpoint(**requested))
    with raises_code("checkpoint-damaged", step=18) as error:
        learner.fit(shuffled(), valid_data())
    assert isinstance(error.value, DamagedError)
    assert "state/_METADATA" in str(error.value)
    assert tree_of(copy) == before


def test_all_checkpoints_are_damaged(copy):
    for step in saved_steps(copy):
        flip(copy / "checkpoint" / str(step) / "manifest.json")
    before = tree_of(copy)
    with raises_code("resume-no-usable-checkpoint") as error:
        build(copy, 4).fit(shuffled(), valid_data())
    assert all(f"checkpoint/{step} is damaged" in str(error.value) for step in (6, 12, 18))
    assert "overwrite=True" in str(error.value)
    assert tree_of(copy) == before


def test_best_model_of_the_remaining_checkpoints(copy):
    """The losses decrease, so that the newest is the best."""
    best = build(copy).fit(shuffled(), valid_data()).best_model
    flip(copy / "checkpoint" / "18" / "state" / "_METADATA")
    second = build(copy, 3).fit(shuffled(), valid_data())
    assert second.best_model["w"].tolist() == best["w"].tolist()  # it trained the third epoch again
    assert saved_steps(copy) == [6, 12, 18]


# -- a disk that is full, read-only or gone ----------------------------------------------------------------------------

INSIDE = 'mount -t tmpfs -o size=2M tmpfs "$1" && "$3" "$4" "$1/run" "$5" "$6"; code=$?; cp -a "$1/." "$2"; exit $code'
SECONDS = 120  # timeout of a process


def on_a_small_disk(tmp_path, policy, what):
    """Return the output of a run in a separate process with its own file system; its directory is copied to `run`."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("a process may not have file systems of its own here (unshare -rm)")
    support = Path(__file__).parents[1] / "support"
    environment = os.environ | {
        "PYTHONPATH": str(Path(learner.__file__).parents[1]),
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONWARNINGS": "ignore",  # those of the run, which has no renderer
    }
    (tmp_path / "disk").mkdir()
    words = [tmp_path / "disk", tmp_path, sys.executable, support / "disks.py", policy, what]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", INSIDE, "sh", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no thread prints anything
    return done.stdout


def is_whole(directory, steps):
    """Check that only these checkpoints exist, that they load, and that the run resumes from the newest."""
    assert sorted(int(path.name) for path in (directory / "checkpoint").iterdir()) == steps
    store = CheckpointStore(directory / "checkpoint")
    for step in steps:
        store.verify(step)
    store.close()

    def fit(name):
        builder = quiet(directory.parent / name).num_epochs(6).with_file_checkpointer(keep_last=1)
        result = build_line(builder.resume()).fit(batches())
        return bits(result.model), result.history, logs_of(directory.parent / name)

    assert fit(directory.name) == fit("whole")
    assert [line["step"] for line in journal_of(directory) if line["event"] == "start"] == [0, steps[-1]]


def warnings_of(directory):
    return [line for line in (directory / "experiment.log").read_text().splitlines() if "WARNING" in line]


UNWRITABLE = {"full": "No space left on device", "read-only checkpoints": "Read-only file system"}


def goes_wrong(tmp_path, policy, what):
    output, directory = on_a_small_disk(tmp_path, policy, what), tmp_path / "run"
    if policy == "warn":
        assert output == "num_epochs\n"
        first, second = warnings_of(directory)
        for step, text in ((12, first), (18, second)):
            assert f"the checkpoint of step {step} could not be written to " in text
            assert f"run/checkpoint/{step}, and training continues: " in text
            assert UNWRITABLE[what] in text
        is_whole(directory, [6, 24, 30])
        return
    assert UNWRITABLE[what] in output
    assert f"while writing the checkpoint {tmp_path}/disk/run/checkpoint/12\n" in output
    last = journal_of(directory)[-1]
    assert last["event"] == "error"
    assert last["step"] < 300  # at the next dispatch, not at the end
    assert "while writing the checkpoint" in (directory / "experiment.log").read_text()
    is_whole(directory, [6])


@pytest.mark.parametrize("policy", some(["raise", "warn"], ()))
def test_disk_full(tmp_path, policy):
    """The policy decides how the run continues; the previous checkpoint is intact, and no file of the failed one
    remains.
    """
    goes_wrong(tmp_path, policy, "full")


@pytest.mark.parametrize(
    "what", some(["nearly full", "nearly full, and nobody looks"], {"nearly full, and nobody looks"})
)
def test_disk_that_is_nearly_full(tmp_path, what):
    """The logs have space as soon as a checkpoint without space is removed, which is at once."""
    output, directory = on_a_small_disk(tmp_path, "warn", what), tmp_path / "run"
    assert output == "num_epochs\n"
    assert [path.name for path in (directory / "checkpoint").iterdir()] == ["6"]
    for step, text in zip((12, 18, 24, 30, 30), warnings_of(directory), strict=True):  # the last one is retried
        assert f"the checkpoint of step {step} could not be written to " in text
        assert "No space left on device" in text
    assert len(journal_of(directory)) > 5
    assert (directory / "summary.json").exists()


@pytest.mark.full
def test_disk_full_for_the_logs_too(tmp_path):
    """Logs are a part of the run: it ends, whatever the policy for checkpoints, and can resume when there is space."""
    output, directory = on_a_small_disk(tmp_path, "raise", "full for the logs too"), tmp_path / "run"
    assert "No space left on device" in output
    assert not (directory / "summary.json").exists()
    is_whole(directory, [6])


@pytest.mark.full
@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_readonly_dir(tmp_path, policy):
    goes_wrong(tmp_path, policy, "read-only checkpoints")


@pytest.mark.full
def test_readonly_dir_of_the_logs_too(tmp_path):
    output, directory = on_a_small_disk(tmp_path, "raise", "read-only"), tmp_path / "run"
    assert "Read-only file system: " in output
    assert f"{tmp_path}/disk/run/" in output
    is_whole(directory, [6])


@pytest.mark.full
def test_readonly_dir_from_the_start(tmp_path):
    output = on_a_small_disk(tmp_path, "raise", "read-only from the start")
    assert output == f"LearnerError: the directory {tmp_path}/disk/run is not writable\n\n"
    assert list((tmp_path / "run").iterdir()) == []


class Remover:
    """Remove a directory at a step, once `saves` checkpoints are complete."""

    def __init__(self, directory, step, saves):
        self.directory, self.step, self.saves, self.told = directory, step, saves, SaverEvents()

    def fit(self, builder):
        def remove(info, model):
            if info.step == self.step:
                assert all(self.told.saved.acquire(timeout=SECONDS) for _ in range(self.saves))
                shutil.rmtree(self.directory)

        return build_line(builder.metric_loggers(self.told).every(1, remove)).fit(batches(), valid_data())


@pytest.mark.parametrize(
    ("options", "step", "saves", "codes"),
    [
        ({"every_steps": 1}, 8, 7, {"checkpoint-directory-gone", "run-log-removed"}),
        pytest.param({"every_epochs": 100}, 8, 0, {"run-log-removed"}, marks=pytest.mark.full),
        (None, 3, 0, {"run-log-removed"}),
    ],
    ids=["before a save", "before a log", "before the first log"],
)
def test_dir_deleted_mid_run(tmp_path, options, step, saves, codes):
    """The run raises soon, and creates no directory with a part of the run. The save and the logs of a step are written
    by two threads, and the first that finds no directory raises.
    """
    builder = quiet(tmp_path / "run").num_epochs(9)
    if options is not None:
        builder.with_file_checkpointer(**options)
    with pytest.raises(LearnerError) as raised:
        Remover(tmp_path / "run", step, saves).fit(builder)
    assert {raised.value.code, *raised.value.codes} & codes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_dir_deleted_mid_run_of_the_checkpoints(tmp_path):
    """The policy decides, as for full disks."""
    remover = Remover(tmp_path / "run" / "checkpoint", 8, 1)
    result = remover.fit(quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer().on_save_error("warn"))
    assert result.stopped_by == "num_epochs"
    texts = warnings_of(tmp_path / "run")
    for step, text in zip((12, 18, 18), texts, strict=True):  # the last one is retried at the end
        assert f"the checkpoint of step {step} could not be written" in text
        assert "run/checkpoint was removed while the run was training" in text
    assert not (tmp_path / "run" / "checkpoint").exists()
