"""Tests of pushing models to the Hub and pulling them, with a local server."""

import json
import sys
import traceback

import numpy as np
import optax
import pytest
from safetensors.numpy import load

from learner import load_model
from learner.metrics import Accuracy
from learner.records import export_model, pull_model, push_model
from learner.util.distribution import install_hint
from tests.support.codes import raises_code
from tests.support.hub import TOKEN, serving
from tests.support.runs import (
    LastRow,
    X,
    class_step,
    line,
    line_predictions,
    line_step,
    model_bits,
    quiet,
    shuffled,
    valid_data,
)

pytest.importorskip("huggingface_hub.constants", reason="the extra hub is not installed")
hub = pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")

METRICS = {"train/Loss": 0.25, "valid/Loss": 0.5, "valid-ood/Top 5 Accuracy": 0.75, "valid/Perplexity": float("inf")}


@pytest.fixture
def server(tmp_path, monkeypatch):
    with serving(tmp_path, monkeypatch) as server:
        yield server


@pytest.mark.full
def test_push_pull_and_load(server, tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2).metrics(Accuracy(), LastRow())
    learner = builder.build(line(3, 3), optax.sgd, 0.1, train_step=class_step, valid_step=class_step)
    result = learner.fit(shuffled(), valid_data())
    address = result.push("me/net", card={"license": "mit"})
    commit = server.branches["me/net"]["main"]
    assert address == f"{server.endpoint}/me/net/commit/{commit}"
    assert server.newest("me/net").keys() == {".gitattributes", "README.md", "model.safetensors"}
    path = pull_model("me/net", tmp_path / "net")
    assert sorted(file.name for file in path.iterdir()) == ["README.md", "hub.json", "model.safetensors"]
    assert json.loads((path / "hub.json").read_text()) == {"repository": "me/net", "commit": commit}
    model = load_model(path / "model.safetensors", line(3, 3))
    assert model_bits(model) == model_bits(result.best_model)
    card = hub.ModelCard.load(path / "README.md")
    best = {entry.metric_name: entry.metric_value for entry in card.data.eval_results}
    epoch = result.best_epoch - 1
    assert best == {name: result.history[f"valid/{name}"][epoch] for name in ("Accuracy", "Loss", "Last Row")}
    assert card.data.license == "mit"


@pytest.mark.full
def test_contents_of_the_card(server, tmp_path):
    export = export_model(tmp_path / "out", line(), X, function=line_predictions, platforms=["cpu"])
    card = {"datasets": ["mnist"], "pipeline_tag": "image-classification", "tags": ["digits"]}
    config = "model: mine.Line\nlr: 0.1\n"
    push_model("me/line", line(), metrics=METRICS, config=config, export=export, card=card)
    files = server.newest("me/line")
    assert files["config.yaml"].decode() == config
    assert {name for name in files if name.startswith("inference/")} == {
        f"inference/{file.name}" for file in export.iterdir()
    }
    np.testing.assert_array_equal(load(files["model.safetensors"])["w"], np.zeros((3, 1), np.float32))
    read = hub.ModelCard(files["README.md"].decode())
    assert (read.data.library_name, read.data.tags) == ("learner", ["jax", "learner", "digits"])
    results = [
        (x.task_type, x.dataset_name, x.dataset_split, x.metric_type, x.metric_value) for x in read.data.eval_results
    ]
    assert results == [
        ("image-classification", "mnist", "valid", "loss", 0.5),
        ("image-classification", "mnist", "valid-ood", "top_5_accuracy", 0.75),
    ]
    assert "| train/Loss | 0.25 |" in read.text
    assert "4 numbers" in read.text
    assert f"```yaml\n{config}```" in read.text
    assert "learner pull me/line line" in read.text
    path = pull_model("me/line", tmp_path / "line")
    assert {file.name for file in (path / "inference").iterdir()} == {file.name for file in export.iterdir()}


def test_branches_and_private_repositories(server, tmp_path, monkeypatch):
    push_model("me/line", line(value=1.0), private=True)
    push_model("me/line", line(value=2.0), revision="wide", private=True)
    for revision, value in ((None, 1.0), ("wide", 2.0), (server.branches["me/line"]["main"], 1.0)):
        path = pull_model("me/line", tmp_path / f"{value}-{revision}", revision=revision)
        assert load_model(path / "model.safetensors", line())["w"][0, 0] == value
    with raises_code("hub-revision-missing"):
        pull_model("me/line", tmp_path / "none", revision="tall")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with raises_code("hub-repository-missing", server.endpoint, name="me/line"):
        pull_model("me/line", tmp_path / "none", revision="main")
    assert not (tmp_path / "none").exists()


def test_other_files_are_not_pulled(server, tmp_path):
    push_model("me/line", line())
    files = server.newest("me/line")
    files |= {"run.py": b"import os", "inference/../../evil": b"", "hub.json": b"{}", "journal.jsonl": b"{}"}
    path = pull_model("me/line", tmp_path / "line")
    assert sorted(file.name for file in path.iterdir()) == ["README.md", "hub.json", "model.safetensors"]
    assert not list(tmp_path.rglob("evil"))
    del files["model.safetensors"]
    server.branches["me/line"]["main"] = server._commit(files)
    with raises_code("hub-model-missing", name="me/line"):
        pull_model("me/line", tmp_path / "none")
    with raises_code("hub-directory-exists"):
        pull_model("me/line", tmp_path / "line")
    assert {file.name for file in tmp_path.iterdir()} == {"cache", "line"}


def test_offline(server, tmp_path, monkeypatch):
    push_model("me/line", line(value=3.0))
    pull_model("me/line", tmp_path / "first")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    path = pull_model("me/line", tmp_path / "second")  # from the cache
    assert load_model(path / "model.safetensors", line())["w"][0, 0] == 3.0
    with raises_code("hub-offline", "HF_HUB_OFFLINE", "cache"):
        pull_model("me/other", tmp_path / "none")
    with raises_code("hub-offline", "HF_HUB_OFFLINE"):
        push_model("me/line", line())


def test_wrong_arguments_raise_before_any_request(server, tmp_path, monkeypatch):
    with raises_code("hub-card-key", "'license'", key="licence"):
        push_model("me/line", line(), card={"licence": "mit"})
    with raises_code("hub-export-missing"):
        push_model("me/line", line(), export=tmp_path)
    with raises_code("hub-repository-name"):
        push_model("me/my/line", line())
    monkeypatch.delenv("HF_TOKEN")
    with raises_code("hub-token-missing", "hf auth login", "HF_TOKEN"):
        push_model("me/line", line())
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises_code("package-missing", install_hint("hub"), extra="hub"):
        push_model("me/line", line())
    assert server.requests == []


def test_token_is_in_no_message_and_no_file(server, tmp_path, monkeypatch, caplog):
    wrong = TOKEN[::-1]
    builder = quiet(tmp_path / "run", saves=True).num_epochs(1)
    result = builder.build(line(), optax.sgd, 0.1, train_step=line_step).fit(shuffled())
    result.push("me/line", best=False)
    with raises_code("hub-failed", "malformed: Bearer ***") as quoted:
        result.push("me/quoting", best=False)
    monkeypatch.setenv("HF_TOKEN", wrong)
    with raises_code("hub-token-refused", "HF_TOKEN") as refused:
        result.push("me/line", best=False)
    with raises_code("hub-repository-missing") as missing:
        pull_model("me/none", tmp_path / "none")
    shown = [*(traceback.format_exception(error.value) for error in (quoted, refused, missing)), caplog.text]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stored = [content for files in server.files.values() for content in files.values()]
    for token in (TOKEN, wrong):
        assert token not in str(shown)
        assert all(token.encode() not in content for content in (*files, *stored))


def test_unreachable_hub(server, tmp_path, monkeypatch):
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    for call in (lambda: push_model("me/line", line()), lambda: pull_model("me/line", tmp_path / "none")):
        with raises_code("hub-failed", "Connect"):
            call()
