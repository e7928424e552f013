"""Object stores as servers on this machine: `pip install "moto[server]" s3fs gcsfs gcp-storage-emulator`."""

import contextlib
import os
import socket
import traceback
import urllib.request

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from learner import Checkpointer
from learner.checkpoint import store
from learner.checkpoint.retention import Retention
from learner.checkpoint.store import CheckpointStore
from learner.loggers import RunMirror
from learner.runs.remote import RemoteRun
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, logs_of, quiet, saved_steps

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # those of the servers and their libraries


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of S3."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    import boto3

    s3fs.S3FileSystem.clear_instance_cache()  # they know the address of the server of the test before
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
    """A bucket of Google Cloud Storage. One server for all tests: TensorStore reads its address once."""
    server = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    names = {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_CLOUD_PROJECT": "project"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        running = server.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
        running.start()
        yield "gs://bucket"
        running.stop()


def names_in(address):
    """Return the names of what is in a directory of the bucket."""
    return sorted(path.name for path in epath.Path(address).iterdir())


def fit(directory, address, epochs=3, on_save_error="raise", hook=None):
    builder = quiet(directory, saves=True).num_epochs(epochs).on_save_error(on_save_error).resume()
    if hook is not None:
        builder.every(steps=1, fn=hook)
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
    calls, called = [], getattr(store, function)

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise error
        return called(*arguments)

    monkeypatch.setattr(store, function, call)


@pytest.mark.parametrize("number", [1, 2])
def test_a_save_that_was_cut_off_is_no_checkpoint_and_the_run_resumes(cloud, tmp_path, monkeypatch, number):
    """All its arrays are there, but no manifest, as after a kill."""
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


def test_a_damaged_checkpoint_is_set_aside(cloud, tmp_path):
    address = f"{cloud}/damaged"
    fit(tmp_path / "run", address, epochs=2)
    (epath.Path(address) / "12" / "manifest.json").unlink()
    fit(tmp_path / "run", address)
    assert "is damaged: manifest.json is missing" in (tmp_path / "run" / "experiment.log").read_text()
    assert names_in(address) == ["12", "18", "superseded"]
    assert "12" in names_in(f"{address}/superseded/1")


def test_a_store_that_is_gone_for_a_while_costs_one_checkpoint(cloud, tmp_path, monkeypatch):
    gone = ConnectionResetError(104, "Connection reset by peer")
    cut_off(monkeypatch, "write_manifest", 2, gone)
    fit(tmp_path / "run", f"{cloud}/gone", on_save_error="warn")
    assert "Connection reset by peer" in (tmp_path / "run" / "experiment.log").read_text()
    assert CheckpointStore(f"{cloud}/gone").steps == [6, 18]
    fit(tmp_path / "run", f"{cloud}/gone", epochs=4)
    assert names_in(f"{cloud}/gone") == ["18", "24"]
    cut_off(monkeypatch, "write_manifest", 1, gone)
    with pytest.raises(ConnectionResetError):
        fit(tmp_path / "run", f"{cloud}/gone", epochs=5)


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
    with raises_code("checkpoint-address-unreachable", "Bucket does not exist: other", directory="gs://other/run"):
        fit(tmp_path / "run", "gs://other/run")

    def no_answer(*arguments, **named):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(type(epath.backend.fsspec_backend), "exists", no_answer)
    with raises_code("checkpoint-address-unreachable", "Connection refused", directory=f"{cloud}/run"):
        fit(tmp_path / "other", f"{cloud}/run")
