"""Object stores as servers on this machine: `pip install "moto[server]" s3fs gcsfs gcp-storage-emulator`."""

import contextlib
import socket

import jax.numpy as jnp
import numpy as np
import pytest

from learner import Checkpointer
from learner.loggers import RunMirror
from learner.runs.remote import RemoteRun
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, logs_of, quiet, saved_steps

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # those of the servers and their libraries


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def bucket(monkeypatch, port):
    """A bucket of S3."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    import boto3

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


def test_checkpoints_in_google_cloud_storage(monkeypatch, port):
    server = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    address = f"http://127.0.0.1:{port}"
    names = {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_CLOUD_PROJECT": "project"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    running = server.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    running.start()
    state = {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(3)}
    with contextlib.closing(Checkpointer("gs://bucket/run", keep_last=2)) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {name: x + step for name, x in state.items()}, info={"epoch": step})
        assert checkpointer.steps == [2, 3]
    with contextlib.closing(Checkpointer("gs://bucket/run", keep_last=2)) as checkpointer:
        restored = checkpointer.restore(state)
    running.stop()
    assert (restored.step, restored.info) == (3, {"epoch": 3})
    np.testing.assert_array_equal(restored.state["w"], np.arange(12.0).reshape(3, 4) + 3)
