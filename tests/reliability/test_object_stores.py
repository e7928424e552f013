"""Tests of object stores with servers on this machine: `pip install "moto[server]" s3fs gcsfs gcp-storage-emulator`."""

import base64
import contextlib
import hashlib
import json
import logging
import os
import re
import threading
import traceback
import urllib.parse
import urllib.request
import warnings

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from learner import Checkpointer, LearnerWarning, load_checkpoint
from learner.checkpoint import places, store
from learner.checkpoint.arrays import ArrayFiles
from learner.checkpoint.manifest import MARK
from learner.checkpoint.retention import Retention
from learner.checkpoint.store import CheckpointStore
from learner.checkpoint.stored_files import checksums, stored_files
from learner.cli import summary
from learner.cli.main import main
from learner.events import Listener, Message
from learner.loggers import RunMirror
from learner.runs.remote import RemoteRun
from learner.util.retries import Retries
from tests.support.buckets import free_port, google, settings_of
from tests.support.codes import raises_code
from tests.support.processes import ROOT, start
from tests.support.runs import batches, build_line, logs_of, quiet, saved_steps

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # warnings of the servers and their libraries


@pytest.fixture
def bucket(monkeypatch):
    """Yield an S3 bucket."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    import boto3

    s3fs.S3FileSystem.clear_instance_cache()  # they have the address of the previous test's server
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    names = {
        "ACCESS_KEY_ID": "key",
        "SECRET_ACCESS_KEY": "word",
        "DEFAULT_REGION": "us-east-1",
        "ENDPOINT_URL": address,
    }
    for name, value in names.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    running.start()
    boto3.client("s3", endpoint_url=address).create_bucket(Bucket="bucket")
    yield "s3://bucket"
    running.stop()


def test_a_run_is_kept_in_s3_and_resumed_elsewhere(tmp_path, bucket):
    def fit(directory, epochs):
        builder = quiet(directory, saves=True).metric_loggers(RunMirror(f"{bucket}/run")).num_epochs(epochs).resume()
        return build_line(builder.with_file_checkpointer(keep_last=1, keep_best=0)).fit(batches(), batches())

    whole = build_line(quiet(tmp_path / "whole").num_epochs(3)).fit(batches(), batches())
    fit(tmp_path / "first", 2)
    RemoteRun(f"{bucket}/run").download(tmp_path / "second")
    np.testing.assert_array_equal(fit(tmp_path / "second", 3).model["w"], whole.model["w"])
    RemoteRun(f"{bucket}/run").download(tmp_path / "third")
    assert logs_of(tmp_path / "third") == logs_of(tmp_path / "whole")
    assert saved_steps(tmp_path / "third") == [18]


def test_a_bucket_that_is_not_there_is_an_error_at_once(bucket):
    with raises_code("remote-unwritable", url="s3://other/run") as raised:
        RunMirror("s3://other/run")
    assert "word" not in str(raised.value)


@pytest.mark.parametrize("given", ["none", "wrong"])
def test_credentials_are_checked_at_the_start_and_not_shown(bucket, monkeypatch, tmp_path, given):
    if given == "none":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    else:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-word")
        address = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
        request = urllib.request.Request(address, b"0", {"Content-Type": "text/plain"}, method="POST")
        urllib.request.urlopen(request).close()  # from now on moto checks them
    with raises_code("remote-unwritable", url=f"{bucket}/run") as raised:
        RunMirror(f"{bucket}/run")
    reason = "Unable to locate credentials" if given == "none" else "The AWS Access Key Id you provided does not exist"
    assert reason in str(raised.value)
    assert "wrong-word" not in "".join(traceback.format_exception(raised.value))


# -- Google Cloud Storage ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloud():
    with google() as cloud:
        yield cloud


def names_in(address):
    """Return the names in a directory of the bucket."""
    epath.backend.fsspec_backend.fs(address).invalidate_cache()  # another process may have written there
    return sorted(path.name for path in epath.Path(address).iterdir())


def fit(directory, address, epochs=3, on_save_error="raise", hook=None, listener=None):
    builder = quiet(directory, saves=True).num_epochs(epochs).on_save_error(on_save_error).resume()
    if hook is not None:
        builder.every(steps=1, fn=hook)
    if listener is not None:
        builder.metric_loggers(listener)
    return build_line(builder.with_file_checkpointer(directory=address, keep_last=2, keep_best=0)).fit(
        batches(), batches()
    )


def test_checkpoints_in_google_cloud_storage(cloud):
    state = {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(3)}
    with contextlib.closing(Checkpointer(f"{cloud}/plain", keep_last=2)) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {name: x + step for name, x in state.items()}, info={"epoch": step})
        assert checkpointer.steps == [2, 3]
    with contextlib.closing(Checkpointer(f"{cloud}/plain", keep_last=2)) as checkpointer:
        restored = checkpointer.restore(state)
    assert (restored.step, restored.info) == (3, {"epoch": 3})
    np.testing.assert_array_equal(restored.state["w"], np.arange(12.0).reshape(3, 4) + 3)


def cut_off(monkeypatch, function, number, error):
    """Let this call of a function of the store raise, before it does anything."""
    calls, called = [], getattr(places, function)

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise error
        return called(*arguments)

    monkeypatch.setattr(places, function, call)


@pytest.mark.parametrize("number", [1, 2])
def test_a_save_that_was_cut_off_is_no_checkpoint_and_the_run_resumes(cloud, tmp_path, monkeypatch, number):
    """All its arrays exist, but no manifest, as after a kill."""
    whole = build_line(quiet(tmp_path / "whole").num_epochs(3)).fit(batches(), batches())
    address = f"{cloud}/cut-off-{number}"
    with monkeypatch.context() as patch:
        cut_off(patch, "write_manifest", number, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run", address)
    assert {f"{6 * number}", f"{6 * number}.saving"} <= {*names_in(address)}
    assert CheckpointStore(address).steps == [6][: number - 1]
    result = fit(tmp_path / "run", address)
    np.testing.assert_array_equal(result.model["w"], whole.model["w"])
    assert names_in(address) == ["12", "18"]


def test_a_removal_that_was_cut_off_leaves_no_damaged_checkpoint(cloud, monkeypatch):
    address, items = f"{cloud}/removal", {"model": {"state": {"w": jnp.ones(3)}}}

    def save(step, score):
        with contextlib.closing(CheckpointStore(address, Retention(1, 0, None, False))) as kept:
            kept.prepare()
            kept.save(step, items, {"format": 2, "step": step, "score": score})

    def killed(path, missing_ok=False):
        raise KeyboardInterrupt

    save(4, 0.4)
    with monkeypatch.context() as patch:
        patch.setattr(type(epath.Path(address)), "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(8, 0.3)
    reader = CheckpointStore(address)
    assert (reader.steps, reader.find(epoch="best").step) == ([8], 8)
    save(12, 0.2)
    assert names_in(address) == ["12"]


@pytest.mark.parametrize("on_save_error", ["raise", "warn"])
def test_a_removal_that_fails_is_no_save_that_failed(cloud, tmp_path, monkeypatch, on_save_error):
    def fails(path, missing_ok=False):
        broken()

    address = f"{cloud}/unremoved-{on_save_error}"
    with monkeypatch.context() as patch:
        patch.setattr(places, "AGAIN", Retries(1, sleep=lambda seconds: None))
        patch.setattr(type(epath.Path(address)), "rmtree", fails)
        fit(tmp_path / "run", address, on_save_error=on_save_error)
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert f"{address}/18 is complete; what it replaces could not be removed" in log
    assert "could not be written" not in log
    assert CheckpointStore(address).steps == [12, 18]
    fit(tmp_path / "run", address, epochs=4)
    assert names_in(address) == ["18", "24"]


@pytest.mark.parametrize("file", ["manifest.json", "progress/metadata"])
def test_a_store_that_refuses_a_file_is_no_damage(cloud, file):
    save(cloud, f"unread-{file[0]}").close()
    reader = CheckpointStore(f"{cloud}/unread-{file[0]}")
    with (
        cloud.refused(f"GET /download/storage/v1/b/bucket/o/unread-{file[0]}/4/{file}", is_done=False),
        raises_code("checkpoint-address-unreachable", "Forbidden", directory=f"{cloud}/unread-{file[0]}"),
    ):
        reader.progress(reader.steps[0], verified=False)
    assert reader.progress(reader.steps[0])["step"] == 4


def test_a_store_that_refuses_arrays_is_no_damage(cloud):
    save(cloud, "unread-arrays").close()
    reader, like = CheckpointStore(f"{cloud}/unread-arrays"), {"model": {"params": {"w": np.zeros((1000, 1000))}}}
    with (
        cloud.refused("GET /storage/v1/b/bucket/o/unread-arrays/4/state/manifest.ocdbt", is_done=False),
        raises_code("checkpoint-address-unreachable", "PERMISSION_DENIED", directory=f"{cloud}/unread-arrays"),
    ):
        reader.read(4, like)
    assert reader.read(4, like)["model"]["params"]["w"].sum() == 1e6


def test_a_damaged_checkpoint_is_set_aside(cloud, tmp_path):
    address = f"{cloud}/damaged"
    fit(tmp_path / "run", address, epochs=2)
    (epath.Path(address) / "12" / "manifest.json").unlink()
    fit(tmp_path / "run", address)
    assert "is damaged: manifest.json is missing" in (tmp_path / "run" / "experiment.log").read_text()
    assert names_in(address) == ["12", "18", "superseded"]
    assert "12" in names_in(f"{address}/superseded/1")


def lost(cloud, step):
    """Return a hook that breaks all connections to the store from a step on."""

    def hook(info, model):
        cloud.proxy.gone = cloud.proxy.gone or info.step == step

    return hook


@pytest.mark.parametrize("action", ["default", "error"])
def test_a_store_that_is_gone_for_a_while_costs_nothing(cloud, tmp_path, monkeypatch, action):
    """The pauses between tries are skipped; the store's libraries have their own pauses. A filter that makes warnings
    errors does not end the tries.
    """

    def sleep(seconds):
        cloud.proxy.gone = False

    monkeypatch.setattr(places, "AGAIN", Retries(2, sleep=sleep))
    with warnings.catch_warnings():
        warnings.simplefilter(action, LearnerWarning)
        fit(tmp_path / "run", f"{cloud}/gone-{action}", hook=lost(cloud, 8))
    assert not cloud.proxy.gone
    assert len(warnings_of_tries(tmp_path / "run")) == 1
    assert names_in(f"{cloud}/gone-{action}") == ["12", "18"]


def test_a_store_that_is_silent_is_left_after_a_while(cloud, monkeypatch):
    """Packets are lost without breaking a connection. TensorStore's own timeout is three seconds in these tests."""
    written = ArrayFiles.save

    def silent(files, directory, items):
        cloud.proxy.delay = 3600.0
        back = threading.Timer(2.0, setattr, [cloud.proxy, "delay", 0.0])
        back.start()
        written(files, directory, items)

    monkeypatch.setattr(ArrayFiles, "save", silent)
    save(cloud, "silent", 2.0).close()
    CheckpointStore(f"{cloud}/silent").verify(4)


def warnings_of_tries(directory):
    return [line for line in (directory / "experiment.log").read_text().splitlines() if "tried again in" in line]


def test_each_try_that_fails_is_a_warning_without_secrets(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "AGAIN", Retries(2, sleep=lambda seconds: None))
    for number in (2, 1):  # each counts the calls that the later ones pass on
        error = OSError(f"Forbidden: http://me:word@127.0.0.1/upload?upload_id=a1b2\nno {number}")
        cut_off(monkeypatch, "write_manifest", 2, error)
    seen = Messages()
    fit(tmp_path / "run", f"{cloud}/told", listener=seen)
    lines = [
        f"the checkpoint of step 12 could not be written to {cloud}/told/12; tried again in {seconds} s: OSError: "
        f"Forbidden: http://***@127.0.0.1/upload?*** no {number}"
        for number, seconds in ((1, 1), (2, 2))
    ]
    assert [text for text in seen.texts if "tried again" in text] == lines
    logged = warnings_of_tries(tmp_path / "run")
    assert [line[line.index("the checkpoint") :] for line in logged] == lines
    assert all("WARNING" in line for line in logged)
    assert names_in(f"{cloud}/told") == ["12", "18"]


class Messages(Listener):
    """A listener that keeps the warnings of a run."""

    def __init__(self):
        self.texts = []

    def on_event(self, event):
        if isinstance(event, Message) and event.level == logging.WARNING:
            self.texts.append(event.text)


def test_a_store_that_is_gone_for_long_costs_checkpoints(cloud, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(places, "AGAIN", Retries(1, sleep=pauses.append))
    monkeypatch.setattr(ArrayFiles, "save", lambda self, directory, items: broken("[source locations]\n" * 100))
    address, seen = f"{cloud}/long", Messages()
    fit(tmp_path / "run", address, on_save_error="warn", listener=seen)
    assert pauses == [1.0]  # for the first of three saves
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert log.count("could not be written to gs://bucket/long") >= 3
    assert all(len(text) < 500 and "\n" not in text for text in seen.texts)
    monkeypatch.undo()
    fit(tmp_path / "run", address, epochs=4)
    assert "24" in names_in(address)


def test_a_mistake_is_not_tried_again_and_takes_no_try_from_the_store(cloud, monkeypatch):
    pauses = []
    monkeypatch.setattr(places, "AGAIN", Retries(1, sleep=pauses.append))
    with contextlib.closing(Checkpointer(f"{cloud}/mistakes")) as checkpointer:
        checkpointer.save(1, {"w": jnp.ones(3)})
        with raises_code("checkpoint-step-exists"):
            checkpointer.save(1, {"w": jnp.ones(3)})
        with pytest.raises(TypeError, match="not JSON serializable"):
            checkpointer.save(2, {"w": jnp.ones(3)}, info={"batch": object()})
        assert (names_in(f"{cloud}/mistakes"), pauses) == (["1"], [])
        cut_off(monkeypatch, "write_manifest", 1, ConnectionResetError(104, "Connection reset by peer"))
        checkpointer.save(2, {"w": jnp.ones(3)})
    assert (names_in(f"{cloud}/mistakes"), pauses) == (["1", "2"], [1.0])


def broken(details=""):
    raise ConnectionResetError(104, f"Connection reset by peer {details}")


def test_a_slow_store_holds_no_step(cloud, tmp_path):
    """Each direction of a request takes a tenth of a second, and a save makes 26 requests, one after another."""
    connections = {}

    def hook(info, model):
        connections[info.step] = cloud.proxy.connections
        cloud.proxy.delay = 0.1

    try:
        fit(tmp_path / "run", f"{cloud}/slow", epochs=2, hook=hook)
    finally:
        cloud.proxy.delay = 0.0
    assert connections[12] - connections[6] < 20  # the first save is far from complete when the last step ends
    assert cloud.proxy.connections - connections[6] >= 40
    assert names_in(f"{cloud}/slow") == ["12", "6"]


def save(cloud, name, value=1.0):
    """Save 4 MB as the checkpoint of step 4, and return its store."""
    kept = CheckpointStore(f"{cloud}/{name}", Retention(2, 0, None, False))
    kept.prepare()
    kept.save(4, {"model": {"params": {"w": jnp.full((1000, 1000), value)}}}, {"format": 2, "step": 4})
    return kept


def test_a_save_takes_few_requests_and_reads_nothing_back(cloud):
    with contextlib.closing(save(cloud, "requests")) as kept, cloud.requests() as requests:
        kept.save(8, {"model": {"params": {"w": jnp.ones((1000, 1000))}}}, {"format": 2, "step": 8})
        CheckpointStore(f"{cloud}/requests").verify(8)
    assert len(requests) <= 40
    assert not [request for request in requests if request.endswith("/8/progress")]  # of a directory
    assert not [request for request in requests if "alt=media" in request and "/d/" in request]


UPLOAD = "POST /upload/storage/v1/b/bucket/o?"
REFUSED = {
    "arrays": f"{UPLOAD}uploadType=media&name=NAME/8/state/d/",
    "progress": f"{UPLOAD}name=NAME/8/progress/metadata&uploadType=resumable&upload_id",
    "manifest": f"{UPLOAD}name=NAME/8/manifest.json&uploadType=resumable&upload_id",
    "mark": "DELETE /storage/v1/b/bucket/o/NAME/8.saving",
    "older": "DELETE /storage/v1/b/bucket/o/NAME/4/manifest.json",
}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("what", REFUSED)
def test_a_request_that_fails_in_the_middle_of_a_save_costs_a_try(cloud, monkeypatch, what, is_done):
    monkeypatch.setattr(places, "AGAIN", Retries(1, sleep=lambda seconds: None))
    name = f"refused-{what}-{is_done}"
    items = [{"model": {"state": {"w": jnp.full(3, value)}}} for value in (1.0, 2.0)]
    with contextlib.closing(CheckpointStore(f"{cloud}/{name}", Retention(1, 0, None, False))) as kept:
        kept.prepare()
        kept.save(4, items[0], {"format": 2, "step": 4})
        with cloud.refused(REFUSED[what].replace("NAME", name), is_done) as seen:
            kept.save(8, items[1], {"format": 2, "step": 8})
    assert seen
    assert names_in(f"{cloud}/{name}") == ["8"]
    read = CheckpointStore(f"{cloud}/{name}").restore(8, items[0])
    assert read["model"]["state"]["w"].tolist() == [2.0] * 3


def test_a_composite_object_is_read_and_a_directory_of_another_tool_left_out(cloud, monkeypatch):
    filesystem = fsspec.filesystem("gs")
    files = [f"bucket/listed/1/d/{number:02}" for number in range(12)]
    filesystem.pipe({path: path.encode() for path in [*files, "bucket/listed/1/d/", "bucket/listed/10/other"]})
    find = filesystem.find

    def composite(*arguments, **options):  # the tests' server creates none
        listing = find(*arguments, **options)
        del listing[files[0]]["md5Hash"]
        return listing

    monkeypatch.setattr(filesystem, "find", composite)
    stored = stored_files(epath.Path(f"{cloud}/listed/1"))
    assert [*stored] == [f"d/{number:02}" for number in range(12)]
    digests = checksums([*stored.values()])
    assert digests[0] == hashlib.sha256(files[0].encode()).hexdigest()
    assert digests[1] == "md5:" + base64.b64encode(hashlib.md5(files[1].encode()).digest()).decode()
    assert stored["d/00"].has("md5:" + base64.b64encode(hashlib.md5(files[0].encode()).digest()).decode())


def test_orbax_alone_reads_it(cloud):
    save(cloud, "alone", 3.0).close()
    with ocp.PyTreeCheckpointer() as checkpointer:
        state = checkpointer.restore(f"{cloud}/alone/4/state")
    np.testing.assert_array_equal(state["model"]["params"]["w"], np.full((1000, 1000), 3.0))


@pytest.mark.parametrize("name", ["lr=1%202", "a b", "ü::1"])
def test_names_are_taken_as_they_are(cloud, name):
    save(cloud, f"names/{name}", 3.0).close()
    assert name in names_in(f"{cloud}/names")
    read = CheckpointStore(f"{cloud}/names/{name}").restore(4, {"model": {"params": {"w": jnp.zeros((1000, 1000))}}})
    np.testing.assert_array_equal(read["model"]["params"]["w"], np.full((1000, 1000), 3.0))


def test_a_copy_on_a_disk_is_checked_by_the_checksums_of_the_store(cloud, tmp_path):
    save(cloud, "copied", 2.0).close()
    filesystem, root = fsspec.core.url_to_fs(f"{cloud}/copied/4")
    for path in filesystem.find(root):
        target = tmp_path / "4" / path.removeprefix(f"{root}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(filesystem.cat_file(path))
    restored = CheckpointStore(tmp_path).restore(4, {"model": {"params": {"w": np.zeros((1000, 1000), np.float32)}}})
    np.testing.assert_array_equal(restored["model"]["params"]["w"], np.full((1000, 1000), 2.0))
    large = max((tmp_path / "4" / "state" / "d").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(large.read_bytes())
    data[-1] ^= 1
    large.write_bytes(bytes(data))
    with raises_code("checkpoint-damaged", large.name):
        CheckpointStore(tmp_path).verify(4)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_file_that_was_changed_is_found(cloud, is_old):
    """Older manifests have the SHA-256 of all files, which requires reading them."""
    name = f"changed-{is_old}"
    save(cloud, name).close()
    directory = epath.Path(f"{cloud}/{name}/4")
    if is_old:
        content = json.loads((directory / "manifest.json").read_text())
        del content["sha256"]
        for file, entry in content["files"].items():
            entry[1] = hashlib.sha256((directory / file).read_bytes()).hexdigest()
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        (directory / "manifest.json").write_text(json.dumps({**content, "sha256": digest}))
    CheckpointStore(f"{cloud}/{name}").verify(4)
    large = max((directory / "state" / "d").iterdir(), key=lambda path: path.stat().length)
    data = bytearray(large.read_bytes())
    data[len(data) // 2] ^= 1
    large.write_bytes(bytes(data))
    with raises_code("checkpoint-damaged", re.escape(large.name)):
        CheckpointStore(f"{cloud}/{name}").verify(4)
    large.unlink()
    with raises_code("checkpoint-damaged", "is missing"):
        CheckpointStore(f"{cloud}/{name}").verify(4)


@pytest.fixture
def processes(tmp_path, compiled_once):
    """Return a function that trains in several processes, and returns how each ended. `place`: of the checkpoints."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def run(place, count, devices=1, keep_last=9, **options):
        directory, save = tmp_path / place.rpartition("/")[2], {"directory": place, "keep_last": keep_last}
        words = json.dumps({"save": save, "resume": True, **options}).replace("{", "{{").replace("}", "}}")
        program = ROOT / "tests" / "support" / "trained.py"
        given = ["localhost:{port}", "{count}", "{index}", directory, "mlp", words]
        return start([program, *given], count, devices, timeout=300, **cache)

    return run


def left(ended, directory):
    """Return the arrays of processes that ended well."""
    assert [each.code for each in ended] == [0] * len(ended), ended[0].err[-3000:]
    with np.load(directory / "left-0.npz") as arrays:
        return dict(arrays)


def test_processes_of_which_one_is_killed_in_a_save_resume(cloud, tmp_path, processes):
    """All arrays of the second save are there, split over two processes, but no manifest. Two processes end with the
    bits of an uninterrupted run, and three read them.
    """
    place, options = f"{cloud}/killed", {"epochs": 2, "rules": "fsdp"}
    whole = left(processes(f"{tmp_path}/disk/whole", 2, 4, **options), tmp_path / "whole")
    first, second = processes(place, 2, 4, at={"process": 0, "what": "manifest", "number": 2}, heartbeat=10, **options)
    assert first.code == -9
    assert second.code
    assert CheckpointStore(place).steps == [6]
    assert "12.saving" in names_in(place)
    np.testing.assert_equal(left(processes(place, 2, 4, keep_last=1, **options), tmp_path / "killed"), whole)
    assert names_in(place) == ["12"]
    np.testing.assert_equal(left(processes(place, 3, **options), tmp_path / "killed"), whole)


def test_a_process_that_may_not_write_ends_all_before_training(cloud, tmp_path, processes):
    with cloud.refusing() as port:
        first, second = processes(f"{cloud}/forbidden", 2, epochs=2, environments=[{}, settings_of(port)])
    assert (first.code, second.code) == (2, 2)
    problem = "the checkpoints in gs://bucket/forbidden cannot be reached: OSError: Forbidden"
    assert f"ProcessError: process 1 failed: {problem}" in first.out
    assert not (tmp_path / "forbidden" / "train").exists()
    assert names_in(str(cloud)).count("forbidden") == 0


def test_processes_wait_for_a_store_that_is_gone_for_twenty_seconds(cloud, processes, tmp_path):
    """The tools of the store try again by themselves; nothing waits here but for the processes."""

    def come_and_go():
        with cloud.requests() as requests:
            while not (ended.is_set() or any("gone-20/6/" in request for request in requests)):
                ended.wait(0.1)
        cloud.proxy.gone = True
        ended.wait(20.0)
        cloud.proxy.gone = False

    ended = threading.Event()
    network = threading.Thread(target=come_and_go)
    network.start()
    try:
        left(processes(f"{cloud}/gone-20", 2, epochs=2), tmp_path / "gone-20")
    finally:
        ended.set()
        network.join()
    assert CheckpointStore(f"{cloud}/gone-20").steps == [6, 12]


@pytest.mark.parametrize("function", ["read_manifest", "refuse_damage"])
def test_a_checkpoint_that_the_run_removes_is_no_damage(cloud, tmp_path, monkeypatch, function):
    """The run is another process: the caches of this one do not see its requests."""
    address = f"{cloud}/removed-{function}"
    fit(tmp_path / "run", address, epochs=2)

    def remove(path, *arguments, **options):
        if str(path) == f"{address}/12" and CheckpointStore(address).place.holds(12):
            cloud.put(f"{address}/12.saving", MARK)
            cloud.delete(f"{address}/12/manifest.json")

    called = getattr(store, function)
    monkeypatch.setattr(store, function, lambda path: (remove(path), called(path))[1])
    assert load_checkpoint(address, "latest").step == 6
    assert names_in(f"{address}/12")


def test_checkpoints_of_another_process_are_listed_anew(cloud):
    save(cloud, "anew").close()
    kept = CheckpointStore(f"{cloud}/anew")
    assert (kept.steps, kept.place.holds(4)) == ([4], True)
    cloud.delete(f"{cloud}/anew/4/manifest.json")
    cloud.put(f"{cloud}/anew/4.saving", MARK)
    assert (CheckpointStore(f"{cloud}/anew").steps, kept.place.holds(4)) == ([], False)


def test_the_summary_of_an_active_run_lists_its_checkpoints(cloud, tmp_path, capsys):
    fit(tmp_path / "run", f"{cloud}/summary", epochs=2)
    (tmp_path / "run" / "summary.json").unlink()
    assert main(["summary", str(tmp_path / "run"), "--json"]) == 0
    out, err = capsys.readouterr()
    expected = [{"epoch": n, "step": 6 * n, "path": f"{cloud}/summary/{6 * n}"} for n in (1, 2)]
    assert (json.loads(out)["checkpoints"], err) == (expected, "")
    cloud.proxy.gone = True
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(summary, "ANSWER_SECONDS", 1.0)
            assert main(["summary", str(tmp_path / "run")]) == 0
    finally:
        cloud.proxy.gone = False
    assert (
        f"the checkpoints in {cloud}/summary are not listed: there was no answer within 1 s" in capsys.readouterr().err
    )


def test_a_checkpoint_of_a_stop_is_replaced(cloud):
    kept = CheckpointStore(f"{cloud}/stop", Retention(2, 0, None, False))
    for value, at_stop in ((1.0, True), (2.0, False)):
        kept.prepare()
        kept.save(4, {"model": {"state": {"w": jnp.full(3, value)}}}, {"step": 4, "at_stop": at_stop})
    assert names_in(f"{cloud}/stop") == ["4"]
    assert kept.restore(4, {"model": {"state": {"w": jnp.zeros(3)}}})["model"]["state"]["w"].tolist() == [2.0] * 3
    kept.close()


def test_what_others_keep_there_stays(cloud):
    theirs = epath.Path(f"{cloud}/theirs/4/notes")
    theirs.write_text("of somebody else")
    for _ in range(2):
        kept = CheckpointStore(f"{cloud}/theirs", Retention(2, 0, None, False))
        kept.prepare()
        with raises_code("checkpoint-path-in-the-way"):
            kept.save(4, {"model": {"state": {"w": jnp.ones(3)}}}, {"step": 4})
        kept.close()
    assert theirs.read_text() == "of somebody else"
    assert names_in(f"{cloud}/theirs") == ["4"]


def test_a_bucket_that_is_not_there_or_does_not_answer_is_an_error_before_training(cloud, tmp_path, monkeypatch):
    with raises_code("checkpoint-address-unreachable", "The bucket has to exist", directory="gs://other/run"):
        fit(tmp_path / "run", "gs://other/run")

    def no_answer(*arguments, **named):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(type(epath.backend.fsspec_backend), "exists", no_answer)
    with raises_code("checkpoint-address-unreachable", "Connection refused", directory=f"{cloud}/run"):
        fit(tmp_path / "other", f"{cloud}/run")
