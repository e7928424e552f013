"""Tests of checkpoints on disk."""

import collections
import dataclasses
import errno
import hashlib
import json
import logging
import math
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner import TrainState
from learner.checkpoint import CheckpointStore, Entry, Retention, places
from learner.checkpoint.items import from_items, to_items
from learner.checkpoint.manifest import MARK, read_manifest
from learner.checkpoint.places import open_place
from tests.support.codes import raises_code
from tests.support.runs import bits, tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")

ALL = Retention(last=100, best=0, every=None, higher_is_better=False)
NEWEST = Retention(last=1, best=0, every=None, higher_is_better=False)
HARD = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4028235e38, 1 / 3]


def state_of(step):
    floats = jnp.asarray([*HARD, step], jnp.float32)
    params = {"w": floats, "half": floats.astype(jnp.bfloat16), "empty": jnp.zeros((0, 2))}
    carried = {"n": jnp.int32([-1, step]), "key": jax.random.key(step), "flag": jnp.array([True, False])}
    opt_state = ({"mu": floats * 2, "count": jnp.int32(step)},)
    return TrainState(jnp.int32(step), params, carried, opt_state, jnp.float32(0.1), jax.random.key(1), {})


SMALL = {"model": {"params": {"w": np.float32([1, 2])}, "model_state": {}}}


@pytest.fixture
def opened():
    """Yield a function that opens stores, and close them."""
    stores = []

    def open_store(directory, retention=None):
        stores.append(CheckpointStore(directory, retention))
        if retention is not None:
            stores[-1].prepare()
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def steps_in(directory):
    return sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit())


def save(store, step, epoch=None, score=None, **further):
    store.save(step, SMALL, {"step": step, "ends_epoch": epoch, "score": score, **further})


def test_every_bit_is_restored(tmp_path, opened):
    saved = state_of(6)
    progress = {"step": 6, "ends_epoch": 1, "score": 0.1, "history": {"a/b": [[1, 6, "NaN"]]}, "config": "ü: 1\n"}
    opened(tmp_path / "c", ALL).save(6, to_items(saved), progress)
    reader, other = opened(tmp_path / "c"), state_of(1)
    restored = from_items(reader.restore(6, to_items(other)), other)
    assert bits(dataclasses.replace(restored, rng=saved.rng)) == bits(saved)
    assert reader.progress(6) == progress
    assert reader.metrics(6) is None


@pytest.mark.parametrize("parent", ["here", "link"])
def test_a_path_with_dots(tmp_path, opened, parent):
    (tmp_path / "here").mkdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    directory = tmp_path / parent / ".." / "c"
    store = opened(directory, ALL)
    save(store, 3)
    assert store.path(3) == directory / "3"  # as it was given
    written = tmp_path / ("far" if parent == "link" else "") / "c"  # as the system resolves the path
    assert steps_in(written) == [3]
    assert bits(opened(written).restore(3, SMALL)) == bits(SMALL)


def test_a_path_with_a_backslash(tmp_path, opened):
    with raises_code("checkpoint-directory-name", "backslash"):
        opened(tmp_path / "runs\\c", ALL)
    assert list(tmp_path.iterdir()) == []


def test_restored_arrays_are_placed_as_requested(tmp_path, opened):
    opened(tmp_path / "c", ALL).save(6, SMALL, {"step": 6})
    device = jax.devices()[3]
    template = jax.device_put(SMALL, jax.sharding.SingleDeviceSharding(device))
    restored = opened(tmp_path / "c").restore(6, template)
    assert restored["model"]["params"]["w"].devices() == {device}


def test_each_part_is_readable_with_orbax_alone(tmp_path, opened):
    import orbax.checkpoint as ocp

    opened(tmp_path / "c", ALL).save(6, to_items(state_of(6)), {"step": 6, "score": 0.25})
    with ocp.PyTreeCheckpointer() as reader:
        path, part = tmp_path / "c" / "6" / "state", {"step": {"value": np.int32(0)}}
        model = reader.restore(path)["model"]
        restored = reader.restore(path, args=ocp.args.PyTreeRestore({"scheduler": part}, partial_restore=True))
        assert restored.keys() == {"scheduler"}
        scheduler = restored["scheduler"]
    assert np.asarray(model["params"]["w"]).tobytes() == np.asarray(state_of(6).params["w"]).tobytes()
    assert int(scheduler["step"]["value"]) == 6
    assert json.loads((tmp_path / "c" / "6" / "progress" / "metadata").read_text())["score"] == 0.25


def test_items_on_the_host(tmp_path, opened):
    saved = to_items(state_of(6))
    opened(tmp_path / "c", ALL).save(6, saved, {"step": 6})
    reader = opened(tmp_path / "c")
    shapes = reader.shapes(6, ["model", "scheduler"])
    assert shapes["model"]["params"]["half"] == jax.ShapeDtypeStruct((9,), jnp.bfloat16)
    read = reader.read(6, shapes)
    assert bits(read) == bits({item: saved[item] for item in ("model", "scheduler")})
    assert {type(leaf) for leaf in jax.tree.leaves(read)} == {np.ndarray}


def test_missing_item(tmp_path, opened):
    opened(tmp_path / "c", ALL).save(6, SMALL, {"step": 6})
    with raises_code("checkpoint-damaged", step=6):
        opened(tmp_path / "c").shapes(6, ["model", "optim"])


def test_metrics_in_flight(tmp_path, opened):
    rows = {"train": {"0": {"0": np.arange(3, dtype=np.int32), "1": np.float32([0.5, math.nan])}}}
    in_flight = {"states": {"0": np.int32(7), "1": np.float32(0.1)}, "rows": rows}
    opened(tmp_path / "c", ALL).save(3, {**SMALL, "in_flight": in_flight}, {"step": 3})
    assert bits(opened(tmp_path / "c").metrics(3)) == bits(in_flight)


@pytest.mark.parametrize(
    ("retention", "scores", "kept"),
    [
        pytest.param(
            Retention(1, 1, None, False),
            [0.5, 0.4, 0.6, math.nan, 0.4],
            [[1], [2], [2, 3], [2, 4], [2, 5]],
            id="a worsening metric does not evict the newest",
        ),
        pytest.param(
            Retention(2, 1, 3, True),
            [0.5, 0.4, 0.3, 0.2, 0.1, 0.5],
            [[1], [1, 2], [1, 2, 3], [1, 3, 4], [1, 3, 4, 5], [1, 3, 5, 6]],
            id="every third",
        ),
    ],
)
@pytest.mark.parametrize("reopened", [False, True], ids=["one store", "a new store for each"])
def test_kept_checkpoints_after_each_save(tmp_path, opened, retention, scores, kept, reopened):
    on_disk, store = [], opened(tmp_path / "c", retention)
    for epoch, score in enumerate(scores, 1):
        save(store, epoch, epoch, None if math.isnan(score) else score)
        on_disk.append(steps_in(tmp_path / "c"))
        store = opened(tmp_path / "c", retention) if reopened else store
    assert on_disk == kept
    assert [entry.step for entry in store.entries] == kept[-1]


def test_a_checkpoint_of_a_stop_passes(tmp_path, opened):
    keep = Retention(2, 0, None, False)
    store = opened(tmp_path / "c", keep)
    for step, at_stop in ((6, False), (12, False), (14, True)):
        save(store, step, None if at_stop else step // 6, at_stop=at_stop)
    assert steps_in(tmp_path / "c") == [12, 14]
    save(opened(tmp_path / "c", keep), 18, 3)
    assert steps_in(tmp_path / "c") == [12, 18]


@pytest.fixture
def three(tmp_path, opened):
    """Return checkpoints at the ends of epochs 1 and 3 and within epoch 2; the best is that of epoch 1."""
    store = opened(tmp_path / "c", ALL)
    save(store, 6, 1, 0.25, higher_is_better=False)
    save(store, 10, higher_is_better=False)
    save(store, 18, 3, 0.25, higher_is_better=False)
    return opened(tmp_path / "c")


@pytest.mark.parametrize(
    ("requested", "step"),
    [({"epoch": 1}, 6), ({"epoch": 3}, 18), ({"step": 10}, 10), ({"epoch": "latest"}, 18), ({"epoch": "best"}, 6)],
)
def test_find(three, requested, step):
    assert three.find(**requested).step == step


def test_the_best_by_a_metric_that_should_be_high(tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    for step, score in ((1, 0.5), (2, None), (3, 0.75), (4, 0.75)):
        save(store, step, step, score, higher_is_better=True)
    assert opened(tmp_path / "c").find("best") == Entry(3, 3, 0.75)


def test_the_best_by_a_former_monitor_stays_until_there_is_one_by_the_new(tmp_path, opened):
    """A run that resumes with another monitor, of another direction, may be stopped before the monitor has a value."""
    by_loss = {"monitor": "valid/Loss", "higher_is_better": False}
    by_accuracy = {"monitor": "valid/Accuracy", "higher_is_better": True}
    store = opened(tmp_path / "c", Retention(1, 1, None, False))
    save(store, 1, 1, 0.25, **by_loss)
    save(store, 2, 2, 0.5, **by_loss)
    store = opened(tmp_path / "c", Retention(1, 1, None, True))
    store.prune()
    assert (steps_in(tmp_path / "c"), store.best().step) == ([1, 2], 1)
    save(store, 3, **by_accuracy)
    save(store, 4, 4, 0.1, at_stop=True, **by_accuracy)
    assert (steps_in(tmp_path / "c"), store.best().step) == ([1, 4], 1)
    save(store, 5, 5, 0.75, **by_accuracy)
    save(store, 6, 6, 0.5, **by_accuracy)
    assert (steps_in(tmp_path / "c"), store.best().step) == ([5, 6], 5)


def test_without_any_score_the_best_is_the_newest(tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    save(store, 1)
    save(store, 2)
    assert store.best() is None
    assert store.find("best").step == 2


@pytest.mark.parametrize("requested", [{"epoch": 2}, {"step": 7}])
def test_missing_checkpoint_lists_existing_ones(three, tmp_path, requested):
    name, known = (
        "the end of epoch 2" if "epoch" in requested else "step 7",
        "step 6 (epoch 1), step 10, step 18 (epoch 3)",
    )
    with raises_code("checkpoint-not-found", name=name, known=known) as error:
        three.find(**requested)
    assert str(tmp_path / "c") in str(error.value)


@pytest.mark.full
def test_messages_name_the_first_and_last_of_many_checkpoints(tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    for step in range(1, 12):
        save(store, step)
    known = "step 1, step 2, step 3, step 4, ..., step 8, step 9, step 10, step 11 and 3 others"
    with raises_code("checkpoint-not-found", name="step 99", known=known):
        store.find(step=99)
    others = "there are also step=1, step=2, step=3, step=4, ..., step=7, step=8, step=9, step=10 and 2 others"
    assert store.damaged_error(11, "it is damaged").fields["others"] == others


@pytest.mark.parametrize("requested", [{"epoch": "latest"}, {"epoch": "best"}, {"epoch": 2}, {"step": 7}])
def test_no_checkpoints_at_all(tmp_path, opened, requested):
    with raises_code("checkpoint-missing", directory=str(tmp_path / "c")):
        opened(tmp_path / "c").find(**requested)


def test_reading_changes_nothing(three, tmp_path, opened):
    (tmp_path / "c" / "24.partial").mkdir()
    before = tree_of(tmp_path)
    store = opened(tmp_path / "c")
    store.restore(18, SMALL)
    assert [entry.step for entry in store.entries] == [6, 10, 18]
    assert tree_of(tmp_path) == before
    assert (tmp_path / "c" / "24.partial").exists()
    opened(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


CUT_OFF = {
    "24.partial": "24.saving",
    "24.partial.orbax-checkpoint-tmp": "24.saving",
    "25.partial.orbax-checkpoint-tmp": "",  # as version 0.1.0 left it
    "26.partial": "26.partial/_CHECKPOINT_METADATA",
    "3.removed": "3.removed/manifest.json",
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_interrupted_save_or_removal_is_cleaned_up(three, tmp_path, opened, name):
    cut_off, proof = tmp_path / "c" / name, tmp_path / "c" / CUT_OFF[name]
    (cut_off / "model").mkdir(parents=True)
    if proof.name.endswith(".json"):
        proof.write_text(json.dumps({"format": 1, "step": 3, "files": {}, "sha256": ""}))
    elif CUT_OFF[name]:
        proof.write_text(MARK if proof.suffix else "{}")
    assert opened(tmp_path / "c").find("latest").step == 18
    assert opened(tmp_path / "c", ALL).find("latest").step == 18
    assert not cut_off.exists()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["10", "18", "6"]


THEIRS = [
    "24/photo.raw",
    "24/model/photo.raw",
    "24/manifest.json",
    "24.partial/a",
    "24.partial-1/a",
    "24.removed/model",
]


@pytest.mark.parametrize("name", THEIRS)
def test_foreign_directory_named_like_a_checkpoint_is_kept(tmp_path, opened, name):
    """Even if it blocks a save, whose error names it; existing checkpoints are kept, too."""
    place = tmp_path / "c"
    save(opened(place, ALL), 18)
    (place / name).parent.mkdir(parents=True)
    (place / name).write_text('{"files": {}}')
    before = tree_of(place)
    store = opened(place, NEWEST)
    assert store.steps == [18]
    assert tree_of(place) == before
    first = Path(name).parts[0]
    if first in ("24", "24.partial", "24.removed"):
        with raises_code("checkpoint-path-in-the-way", path=str(place / first)):
            save(store, 24)
        assert tree_of(place) == before
    else:
        save(store, 24)
        assert store.steps == [24]
    store.remove_all()
    assert (place / name).read_text() == '{"files": {}}'


@pytest.mark.parametrize("name", ["6", "24", "24.partial", "24.saving"])
def test_nothing_is_written_or_removed_through_a_link(three, tmp_path, opened, name):
    outside = tmp_path / "outside"
    shutil.copytree(tmp_path / "c" / "6", outside)
    shutil.rmtree(tmp_path / "c" / "6")
    (tmp_path / "c" / name).symlink_to(outside)
    before = tree_of(outside)
    store = opened(tmp_path / "c", NEWEST)
    assert 6 not in store.steps
    with raises_code("checkpoint-path-in-the-way", path=str(tmp_path / "c" / name)):
        save(store, int(name.partition(".")[0]))
    store.remove_all()
    assert (tree_of(outside), (tmp_path / "c" / name).is_symlink()) == (before, True)


def test_damaged_checkpoint_is_identified_by_its_progress(three, tmp_path, opened):
    (tmp_path / "c" / "18" / "progress" / "metadata").write_text('{"format": 1, "step": 18}')
    (tmp_path / "c" / "18" / "manifest.json").write_text("")
    store = opened(tmp_path / "c", ALL)
    assert (store.steps, list(store.damaged)) == ([6, 10, 18], [18])
    store.remove_all()
    assert list((tmp_path / "c").iterdir()) == []


def test_a_full_disk_is_found_before_anything_is_written(three, tmp_path, opened, monkeypatch):
    before = tree_of(tmp_path)
    store = opened(tmp_path / "c", ALL)
    usage = collections.namedtuple("Usage", "total used free")(10**9, 10**9 - 150_000, 150_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        OSError, match=r"No space left on device: a checkpoint needs [\d,]+ bytes, and 150,000 are free"
    ):
        save(store, 24)
    assert tree_of(tmp_path) == before


def test_foreign_files_are_kept(tmp_path, opened):
    for name in ("notes", "12.bak", "model-3.mpk.gz"):
        (tmp_path / "c" / name).mkdir(parents=True)
    opened(tmp_path / "c", ALL)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["12.bak", "model-3.mpk.gz", "notes"]


def test_save_below_the_newest_step(tmp_path, opened):
    """Orbax's manager would write nothing."""
    store = opened(tmp_path / "c", ALL)
    save(store, 6)
    save(store, 3)
    assert steps_in(tmp_path / "c") == [3, 6]


def test_existing_step_is_not_replaced(tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    save(store, 6)
    before = tree_of(tmp_path)
    with raises_code("checkpoint-step-exists", step=6):
        save(store, 6)
    assert tree_of(tmp_path) == before


def test_deleted_directory(tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    save(store, 6)
    shutil.rmtree(tmp_path / "c")
    with raises_code("checkpoint-directory-gone", directory=str(tmp_path / "c")):
        save(store, 9)
    assert not (tmp_path / "c").exists()


class Unwritable:
    """A leaf that cannot be stored."""

    shape, dtype = (2,), np.dtype(np.float32)


def test_unserializable_state(tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    save(store, 6)
    before = tree_of(tmp_path)
    with pytest.raises(Exception, match=r".") as caught:
        store.save(9, {"model": {"params": {"w": np.float32([1]), "x": Unwritable()}}}, {"step": 9})
    assert not isinstance(caught.value, AssertionError)
    assert tree_of(tmp_path) == before
    assert [entry.step for entry in store.entries] == [6]


# -- damage ------------------------------------------------------------------------------------------------------------


def damages():
    """Return ways to damage a file."""
    return {
        "truncated": lambda p: p.write_bytes(p.read_bytes()[:-1]),
        "emptied": lambda p: p.write_bytes(b""),
        "deleted": lambda p: p.unlink(),
        "one bit flipped": lambda p: p.write_bytes(
            (b := p.read_bytes())[: len(b) // 2] + bytes([b[len(b) // 2] ^ 1]) + b[len(b) // 2 + 1 :]
        ),
    }


@pytest.mark.parametrize("how", damages())
def test_damage_to_any_file_is_detected(three, tmp_path, opened, how):
    place = tmp_path / "c" / "18"
    files = [p for p in sorted(place.rglob("*")) if p.is_file() and (p.stat().st_size or how == "deleted")]
    names = {p.relative_to(place).as_posix() for p in files if p.parent.name != "d"}
    known = ("_CHECKPOINT_METADATA", "manifest.json", "progress/metadata", "state/_METADATA", "state/manifest.ocdbt")
    assert names == {*known}
    assert len(files) > len(names)  # the arrays
    for path in files:
        content = path.read_bytes()
        damages()[how](path)
        store = opened(tmp_path / "c")
        message = store.damaged.get(18) if 18 in store.steps and 18 in store.damaged else None
        if message is None:
            with raises_code("checkpoint-damaged", step=18) as caught:
                store.restore(18, SMALL)
            message = str(caught.value)
        assert path.relative_to(place).as_posix() in message
        assert str(place) in message
        path.write_bytes(content)
    assert opened(tmp_path / "c").restore(18, SMALL).keys() == SMALL.keys()


def test_the_checksums_of_large_files(tmp_path, opened):
    items = {"model": {"params": {name: np.ones(3 << 20, np.float32) for name in "ab"}}}  # 24 MB
    opened(tmp_path / "c", ALL).save(6, items, {"step": 6})
    files = json.loads((tmp_path / "c" / "6" / "manifest.json").read_text())["files"]
    assert sum(size for size, _ in files.values()) > 24 << 20
    for name, (size, digest) in files.items():
        content = (tmp_path / "c" / "6" / name).read_bytes()
        assert (size, digest) == (len(content), hashlib.sha256(content).hexdigest())


def test_set_aside(three, tmp_path, opened):
    store = opened(tmp_path / "c", ALL)
    before = tree_of(tmp_path / "c" / "18")
    assert store.set_aside(6, tmp_path / "away") == [10, 18]
    assert steps_in(tmp_path / "c") == [6]
    assert steps_in(tmp_path / "away") == [10, 18]
    assert tree_of(tmp_path / "away" / "18") == before
    save(store, 8, 2, 0.5)
    assert [entry.step for entry in store.entries] == [6, 8]
    assert store.set_aside(8, tmp_path / "again") == []
    assert not (tmp_path / "again").exists()


def test_another_model_is_one_error_that_names_the_checkpoint(three, tmp_path):
    other = {"model": {"params": {"w": np.zeros((2, 2), np.float32)}, "model_state": {"mean": np.zeros(1)}}}
    with raises_code("checkpoint-model-differs", count=2) as error:
        three.restore(18, other)
    message = str(error.value)
    assert str(tmp_path / "c" / "18") in message
    assert "model/params/w: saved float32[2], now float32[2, 2]" in message
    assert "model/model_state/mean: saved nothing, now float64[1]" in message


def test_orbax_logging_is_silenced_and_restored(tmp_path, opened, caplog):
    absl = logging.getLogger("absl")
    before = absl.level
    with caplog.at_level(logging.INFO):
        absl.setLevel(logging.INFO)
        save(opened(tmp_path / "c", ALL), 6)
        assert absl.level == logging.INFO
    absl.setLevel(before)
    assert [record for record in caplog.records if record.name == "absl"] == []


def test_object_store_has_a_timeout(monkeypatch):
    monkeypatch.delenv("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", raising=False)
    monkeypatch.setenv("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "100")
    CheckpointStore("gs://bucket/run").path(1)
    assert os.environ["TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"] == "60"
    assert os.environ["TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES"] == "100"  # the user's


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()], ids=repr)
@pytest.mark.parametrize("reads", ["metadata", "read_text"])
def test_error_of_the_process_is_no_damage(three, monkeypatch, error, reads):
    """Otherwise a run would resume from an older checkpoint, and move this one away."""
    store, step = three, 18

    def fails(*args, **kw):
        raise error

    if reads == "metadata":
        monkeypatch.setattr(store._arrays, "metadata", fails)
        with pytest.raises(type(error)):
            store.shapes(step, ["model"])
    else:
        monkeypatch.setattr(f"learner.checkpoint.store.{reads}", fails)
        monkeypatch.setattr(f"learner.checkpoint.manifest.{reads}", fails)
        for read in (lambda: store.progress(step, verified=False), lambda: read_manifest(store.path(step))):
            with pytest.raises(type(error)):
                read()


def test_failed_rename_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    place, rename = open_place(tmp_path), Path.rename
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "earlier").touch()
    place.refuse_obstacle(5, True)  # the store knows this checkpoint and may replace it
    place.target(5).mkdir()

    def failing(self, target):
        if self == place.target(5):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        place.complete(5, "{}", {})
    assert (tmp_path / "5" / "earlier").exists()


def test_directory_of_another_origin_is_not_removed(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "notes.txt").write_text("mine")
    with raises_code("checkpoint-path-in-the-way"):
        open_place(tmp_path).remove(7)
    assert (tmp_path / "7" / "notes.txt").exists()


def test_a_checkpoint_that_cannot_be_removed_is_left_with_a_warning(tmp_path, opened, monkeypatch):
    """It may belong to another user. The next start tries again, and does not fail either, nor does a save that uses
    its name.
    """
    store, warnings = opened(tmp_path, NEWEST), []
    store.place.warn = warnings.append

    def refused(directory):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))

    def names():
        return sorted(path.name for path in tmp_path.iterdir())

    with monkeypatch.context() as context:
        context.setattr(places, "remove_checkpoint", refused)
        save(store, 1)
        save(store, 2)
        assert (names(), len(warnings)) == (["1.removed", "2"], 1)
        store.prepare()
        assert len(warnings) == 2
        assert "1.removed" in warnings[1]
        assert "Permission denied" in warnings[1]
        store.remove(2)
        save(store, 1)
        save(store, 2, at_stop=True)
        save(store, 2)  # replaces that one
        assert names() == ["1.removed", "1.removed.1", "2", "2.removed", "2.removed.1"]
    store.prepare()
    assert names() == ["2"]
