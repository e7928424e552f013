"""Tests of MLflow: a real server on SQLite, read by MLflow's own client."""

import json
import math
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from learner import LearnerError, load_checkpoint
from learner.events import Message, RunFailed
from learner.loggers import MLflow
from learner.loggers.mlflow import key_of
from tests.support.codes import raises_code
from tests.support.logged import ended, played, split, started, steps
from tests.support.runs import batches, build_line, line, model_bits, quiet


@pytest.mark.parametrize(
    ("options", "code", "shown"),
    [
        ({"tracking_uri": "http//localhost:5000"}, "logger-address-malformed", []),
        ({"tracking_uri": "http://"}, "logger-address-malformed", []),
        ({"tracking_uri": "http//me:word@localhost"}, "logger-address-malformed", ["'...'"]),
        ({"tracking_uri": 5}, "logger-mlflow-uri-type", ["tracking_uri"]),
        ({"experiment": ""}, "logger-mlflow-experiment", []),
        ({"retries": -1}, "retries-value", ["is -1"]),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options, code, shown, monkeypatch):
    """Options are checked without importing mlflow."""
    monkeypatch.setattr("learner.loggers.mlflow.refuse_missing", lambda *names: pytest.fail("it looked for mlflow"))
    with raises_code(code, *shown):
        MLflow(**options)


def test_names_get_characters_that_mlflow_accepts():
    assert key_of("valid/F-beta (0.5), ä") == "valid/F-beta _0.5__ ä"
    assert key_of("valid/精度") != key_of("valid/召回")
    assert len(key_of("x" * 300)) == 250


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    from tests.support.mlflowserver import server

    with server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


@pytest.fixture
def client(url, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    from mlflow.tracking import MlflowClient

    return MlflowClient(url)


def runs_of(client, experiment):
    experiment_info = client.get_experiment_by_name(experiment)
    return client.search_runs([experiment_info.experiment_id], order_by=["attributes.start_time ASC"])


def points(client, run, key):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]


def text(client, run, name, tmp_path):
    with open(client.download_artifacts(run.info.run_id, name, str(tmp_path))) as file:
        return file.read()


@pytest.mark.full
def test_contents_of_a_run(url, client, tmp_path):
    facts = {"config": {"lr": 0.1, "model": {"sizes": [1, 2]}}, "environment": {"jax": "0.10"}, "commit": "abc"}
    valid = split("valid", 3, {"Loss": 0.25, "Matrix": "1 0\n0 1"}, time=7.0)
    logger = MLflow(url, "first", every_steps=1)
    played(logger, started(tmp_path / "a", **facts), steps(1, 4.0, math.nan, 2.0, time=5.0), valid, ended(3))
    (run,) = runs_of(client, "first")
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    assert run.data.params == {"lr": "0.1", "model.sizes": "[1, 2]"}
    tags = run.data.tags
    assert (tags["mlflow.source.git.commit"], tags["learner.jax"], tags["learner.stopped_by"]) == (
        "abc",
        "0.10",
        "num_epochs",
    )
    (first, nan, last) = points(client, run, "step/train/Loss")
    assert (first, last, math.isnan(nan[1])) == ((1, 4.0), (3, 2.0), True)
    assert points(client, run, "valid/Loss") == [(3, 0.25)]
    (metric,) = client.get_metric_history(run.info.run_id, "valid/Loss")
    assert metric.timestamp == 7000
    assert text(client, run, "valid/Matrix/step-3.txt", tmp_path) == "1 0\n0 1"
    assert json.loads(text(client, run, "summary.json", tmp_path))["stopped_by"] == "num_epochs"
    assert json.loads(text(client, run, "config.json", tmp_path)) == facts["config"]


@pytest.mark.full
def test_pictures_and_messages(url, client, tmp_path, monkeypatch):
    """Pictures arrive unchanged, at their steps, and each start has its own messages. Pillow's limit does not apply."""
    rng = np.random.default_rng(0)
    drawn = {"A/Matrix (2)": rng.integers(0, 256, (4, 6, 3), np.uint8), "Dark": rng.integers(0, 2, (4, 6), np.uint8)}
    pictures = {name: lambda picture=picture: picture for name, picture in drawn.items()}
    valid = split("valid", 3, dict.fromkeys(drawn, "1 0"), pictures=pictures, time=7.0)
    directory = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 1)  # a limit for untrusted files
        played(MLflow(url, "pictures"), started(directory), Message(0.0, 30, "slow"), valid, RunFailed(1.0, 1, 4, "no"))
    error, again = RunFailed(9.0, 1, 4, "no"), MLflow(url, "pictures")  # one object for two starts, as in a notebook
    played(again, started(directory, 2, time=8.0), Message(9.0, 30, "slow again"), error)
    played(again, started(directory, 2, time=86398.0), Message(86399.0, 20, "saved"), valid, ended(5))
    (run,) = runs_of(client, "pictures")
    paths = sorted(
        artifact.path for artifact in client.list_artifacts(run.info.run_id, "images") if artifact.path.endswith(".png")
    )
    assert [re.sub(r"\+[0-9a-f-]{36}\.png|%[0-9a-f-]{36}\.png", "", path).replace("%", "+") for path in paths] == [
        "images/valid A_Matrix _2_+step+3+timestamp+7000",
        "images/valid Dark+step+3+timestamp+7000",
    ]
    for path, picture in zip(paths, drawn.values(), strict=True):
        with Image.open(client.download_artifacts(run.info.run_id, path, str(tmp_path))) as image:
            np.testing.assert_array_equal(np.asarray(image), picture)
    assert run.data.tags["mlflow.loggedImages"] == "True"
    messages = {
        artifact.path: text(client, run, artifact.path, tmp_path)
        for artifact in client.list_artifacts(run.info.run_id, "messages")
    }
    assert messages == {
        "messages/from-step-0-at-1970-01-01T00-00-01.txt": "1970-01-01 00:00:00 WARNING slow\n",
        "messages/from-step-2-at-1970-01-01T00-00-08.txt": "1970-01-01 00:00:09 WARNING slow again\n",
        "messages/from-step-2-at-1970-01-01T23-59-58.txt": "1970-01-01 23:59:59 INFO  saved\n",
    }


@pytest.mark.full
def test_resumed_run_keeps_its_id_and_sends_nothing_twice(url, client, tmp_path):
    """A run that failed in step 4 resumes at step 2, with another learning rate and a new validation in step 3."""
    directory, options = tmp_path / "run", {"every_steps": 1}
    first = [started(directory, config={"lr": 0.1}), steps(1, 1.0, 2.0), steps(3, 3.0, 4.0), RunFailed(1.0, 1, 4, "no")]
    played(MLflow(url, "second", **options), *first)
    (run,) = runs_of(client, "second")
    assert (run.info.status, run.data.tags["learner.error"]) == ("FAILED", "no")
    again = [steps(3, 3.0, time=8.0), split("valid", 3, {"Loss": 0.5}), steps(4, 4.0, 5.0, time=8.0)]
    config = {"lr": 0.2, "seed": 1}
    played(MLflow(url, "second", **options), started(directory, 2, config=config), *again, ended(5, "sigterm"))
    (run,) = runs_of(client, "second")
    assert (run.info.status, run.data.params) == ("KILLED", {"lr": "0.1", "seed": "1"})
    assert points(client, run, "step/train/Loss") == [(step, float(step)) for step in (1, 2, 3, 4, 5)]
    assert points(client, run, "valid/Loss") == [(3, 0.5)]


@pytest.mark.full
def test_more_metrics_than_a_request_takes(url, client, tmp_path):
    logger = MLflow(url, "third", every_steps=1, clock=lambda: 0.0)
    played(logger, started(tmp_path / "run"), steps(1, *range(1700)), split("train", 1700, {"Loss": 1.0}), ended(1700))
    (run,) = runs_of(client, "third")
    assert points(client, run, "step/train/Loss") == [(step, float(step - 1)) for step in range(1, 1701)]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # MLflow's own use of SQLAlchemy
def test_a_store_in_a_file(tmp_path, monkeypatch, capfd):
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path}/own.db"
    played(MLflow(store, every_steps=2), started(tmp_path / "run"), steps(1, 1.0, 2.0, 3.0, 4.0), ended(4))
    assert capfd.readouterr().out == ""
    (run,) = runs_of(MlflowClient(store), "learner")
    assert points(MlflowClient(store), run, "step/train/Loss") == [(2, 2.0), (4, 4.0)]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # MLflow's own use of SQLAlchemy
def test_a_short_run_waits_for_a_new_store(tmp_path):
    """Creating the store's tables takes longer than the run, and longer than the time limit of most loggers."""
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path}/own.db"
    build_line(quiet(tmp_path / "run").metric_loggers(MLflow(store))).fit(batches())
    assert "left behind" not in (tmp_path / "run" / "experiment.log").read_text()
    (run,) = runs_of(MlflowClient(store), "learner")
    assert run.info.status == "FINISHED"
    assert len(points(MlflowClient(store), run, "train/Loss")) == 1


@pytest.mark.full
def test_unreachable_server_is_retried_and_abandoned(tmp_path, monkeypatch):
    from tests.support.mlflowserver import free_port

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    pauses = []
    logger = MLflow(f"http://127.0.0.1:{free_port()}", retries=2, sleep=pauses.append)
    with pytest.raises(Exception, match="Connection refused"):
        logger.on_event(started(tmp_path / "run"))
    assert pauses == [1.0, 2.0]
    assert not (tmp_path / "run" / "mlflow.json").exists()
    logger.on_event(RunFailed(1.0, 1, 4, "no"))
    assert pauses == [1.0, 2.0], "it is not asked any more"


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["http", "htp"])
def test_errors_do_not_show_the_user_of_an_address(tmp_path, monkeypatch, scheme):
    from tests.support.mlflowserver import free_port

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = f"127.0.0.1:{free_port()}"
    logger = MLflow(f"{scheme}://me:secret@{server}", retries=0)
    with pytest.raises(LearnerError, match=rf"Exception: .*{scheme}://\*\*\*@{server}") as refused:
        logger.on_event(started(tmp_path / "run"))
    assert "secret" not in repr(refused.value)


@pytest.mark.full
def test_the_best_checkpoint_is_an_artifact(url, client, tmp_path):
    """The downloaded artifact loads as any checkpoint."""
    logger = MLflow(url, "checkpoints", log_model="best")
    builder = quiet(tmp_path / "run").metric_loggers(logger).num_epochs(3)
    result = build_line(builder.with_file_checkpointer(keep_last=2, keep_best=1)).fit(batches(), batches())
    (run,) = runs_of(client, "checkpoints")
    (best,) = [checkpoint["step"] for checkpoint in result.summary["checkpoints"] if checkpoint["best"]]
    place = client.download_artifacts(run.info.run_id, f"checkpoint/step-{best}", str(tmp_path))
    (tmp_path / "downloaded").mkdir()
    shutil.move(place, tmp_path / "downloaded" / str(best))
    loaded = load_checkpoint(tmp_path / "downloaded", "latest", line())
    expected = load_checkpoint(tmp_path / "run", "best", line())
    assert model_bits(loaded.model) == model_bits(expected.model)
