"""Tests of the list of a model's arrays, and of `model.json`."""

import json
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from learner import LearnerError, Optimizer
from learner.events import RunStarted
from learner.loggers import MemoryLogger
from learner.models.adapters import abstract_adapter, adapter_of
from learner.models.array_info import array_infos, model_json
from learner.models.freezing import trained_of
from learner.optimizers import Ema
from tests.support.codes import raises_code
from tests.support.runs import Net, batches, build_line, line, line_step, quiet
from tests.support.small_models import CASES, Everything, make_dict, make_linen, make_normed

pytestmark = pytest.mark.usefixtures("compiled_once")


def info_of(model, freeze=()):
    adapter = adapter_of(model, trained_of(None, freeze) if freeze else None)
    return model_json(array_infos(adapter, adapter.params, adapter.model_state))


def kinds(content):
    return {row["path"]: (row["kind"], row["trainable"]) for row in content["arrays"]}


NORM = {"norm.bias": ("params", True), "norm.scale": ("params", True)}


def test_nnx():
    """A shared parameter is listed once; random streams are not."""
    assert kinds(info_of(Everything())) == NORM | {
        "head.bias": ("params", True),
        "head.kernel": ("params", True),
        "layers.0.bias": ("params", True),
        "layers.0.kernel": ("params", True),
        "layers.1.bias": ("params", True),
        "norm.mean": ("batch_stats", False),
        "norm.var": ("batch_stats", False),
        "seen": ("Offset", False),
        "shift": ("params", False),
        "table": ("arrays", False),
    }


def test_linen_with_a_frozen_part():
    content = info_of(make_linen(), ["^hidden"])
    assert kinds(content) == NORM | {
        "head.bias": ("params", True),
        "head.kernel": ("params", True),
        "hidden.bias": ("params", False),
        "hidden.kernel": ("params", False),
        "batch_stats.norm.mean": ("batch_stats", False),
        "batch_stats.norm.var": ("batch_stats", False),
    }
    assert content["parameters"] == (3 * 3 + 3) + (3 + 3) + (3 * 2 + 2)
    assert content["bytes"] == 4 * (content["parameters"] + 6)


def test_equinox_and_its_state():
    entries = kinds(info_of(make_normed()))
    assert {path: kind for path, kind in entries.items() if path.startswith("0.")} == {
        f"0.{path}": ("params", True)
        for path in ("hidden.weight", "hidden.bias", "norm.weight", "norm.bias", "head.weight", "head.bias")
    }
    assert {kind for path, kind in entries.items() if not path.startswith("0.")} == {("state", False)}


def test_equinox_without_a_state():
    class Shifted(eqx.Module):
        w: jax.Array
        shift: jax.Array

    entries = kinds(info_of(Shifted(jnp.ones(2), jnp.arange(2))))
    assert entries == {"w": ("params", True), "shift": ("arrays", False)}


def test_a_tree_by_hand():
    assert info_of(make_dict() | {"key": jax.random.key(0)}, ["head"]) == {
        "parameters": 9 + 3 + 6,
        "bytes": 4 * 18 + 4 + 8,
        "arrays": [
            {"path": "hidden.b", "shape": [3], "dtype": "float32", "kind": "params", "trainable": True},
            {"path": "hidden.w", "shape": [3, 3], "dtype": "float32", "kind": "params", "trainable": True},
            {"path": "head.w", "shape": [3, 2], "dtype": "float32", "kind": "params", "trainable": False},
            {"path": "key", "shape": [], "dtype": "key<fry>", "kind": "arrays", "trainable": False},
            {"path": "seen", "shape": [], "dtype": "int32", "kind": "arrays", "trainable": False},
        ],
    }


def test_variables_of_nnx_inside_of_a_tree():
    entries = kinds(info_of({"norm": nnx.BatchNorm(2, rngs=nnx.Rngs(0)), "w": jnp.ones(2)}))
    assert {path: kind for path, kind in entries.items() if kind[0] != "params"} == {
        "norm.mean.value": ("batch_stats", False),
        "norm.var.value": ("batch_stats", False),
    }


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[pytest.mark.full] * (c.name == "nnx_vmapped")) for c in CASES]
)
def test_every_array_is_there_once(case):
    content = info_of(case.make())
    paths = [row["path"] for row in content["arrays"]]
    expected = case.arrays(case.make())
    assert len(paths) == len(set(paths)) == len(expected)
    assert content["bytes"] == sum(x.nbytes for x in expected.values())
    assert any(case.head in path for path in paths)


def test_abstract_model_has_equal_info():
    adapter, _ = abstract_adapter(Net)
    assert model_json(array_infos(adapter, adapter.params, adapter.model_state)) == info_of(Net())


@pytest.mark.full
def test_run_writes_model_json_at_start_and_on_resuming(tmp_path):
    """The contents are equal. A foreign link is rejected, and not followed."""
    place = tmp_path / "run" / "model.json"
    result = build_line(quiet(tmp_path / "run").with_file_checkpointer()).fit(batches())
    first = place.read_bytes()
    assert json.loads(first) == info_of(line())
    assert "model.json" in result.summary["artifacts"]
    os.remove(place)
    (tmp_path / "elsewhere").write_text("mine")
    place.symlink_to(tmp_path / "elsewhere")
    with raises_code("directory-unusable", "model.json"):
        build_line(quiet(tmp_path / "run").with_file_checkpointer().num_epochs(2).resume()).fit(batches())
    assert (tmp_path / "elsewhere").read_text() == "mine"
    place.unlink()
    build_line(quiet(tmp_path / "run").with_file_checkpointer().num_epochs(2).resume()).fit(batches())
    assert place.read_bytes() == first


def test_run_killed_early_has_model_json(tmp_path):
    """Before the first step: the data fails with the second batch."""

    def failing():
        yield from batches()[:1]
        raise OSError("gone")

    with pytest.raises((OSError, LearnerError)):
        build_line(quiet(tmp_path / "run")).fit(failing)
    assert json.loads((tmp_path / "run" / "model.json").read_text())["parameters"] == 4


@pytest.mark.full
def test_frozen_parts_and_dtypes_of_a_run(tmp_path):
    """The dtypes are those of training."""
    model = {name: x.astype(jnp.bfloat16) for name, x in line().items()}
    learner = (
        quiet(tmp_path / "run").precision("bfloat16").freeze("b").build(model, optax.sgd, 0.1, train_step=line_step)
    )
    learner.fit(batches())
    assert json.loads((tmp_path / "run" / "model.json").read_text())["arrays"] == [
        {"path": "w", "shape": [3, 1], "dtype": "float32", "kind": "params", "trainable": True},
        {"path": "b", "shape": [1], "dtype": "bfloat16", "kind": "params", "trainable": False},
    ]


@pytest.mark.full
def test_the_optimizers_in_the_state_of_an_update_are_no_parameters(tmp_path):
    optimizers = {"ema": Optimizer(Ema(optax.sgd)), "adam": Optimizer(optax.adam)}

    def update(state, batch, lr, rng):
        grads = jax.grad(lambda model: line_step(model, batch).loss)(state["model"])
        model, opt = optimizers["adam"].step(lr, state["model"], grads, state["adam"])
        return {**state, "model": model, "adam": opt}, line_step(model, batch)

    state = {"model": line()} | {name: opt.init(line()) for name, opt in optimizers.items()}
    listener = MemoryLogger()
    learner = quiet(tmp_path / "run").metric_loggers(listener).build(state, None, 0.1, update=update)
    memory = learner.overview(batches()).memory
    assert (memory["parameters"], memory["optimizer"]) == (4 * 4, 4 * (4 + 2 * 4))
    learner.fit(batches())
    written = json.loads((tmp_path / "run" / "model.json").read_text())
    assert written["parameters"] == 4
    kinds = {row["path"]: row["kind"] for row in written["arrays"]}
    assert [kinds[path] for path in ("model.w", "adam.0.mu.w", "ema.1.averaged_params.w")] == [
        "params",
        *["optimizer"] * 2,
    ]
    (started,) = [event for event in listener.events if isinstance(event, RunStarted)]
    assert started.parameters == 4
