"""Tests of exporting models for inference in processes with neither `learner` nor the model's code."""

import subprocess
import sys

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from safetensors.numpy import load_file

from learner import Linen, RegressionOutput
from learner.records import export_model
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    X,
    build_line,
    line,
    line_predictions,
    line_step,
    quiet,
    scripted,
    shuffled,
    valid_data,
)
from tests.support.stopped import some

pytest.importorskip("flatbuffers")


class Net(nnx.Module):
    """A model with weights, running statistics, and a random stream."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.hidden = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.norm(self.hidden(x)))


def linen():
    module = nn.Dense(2)
    return Linen(module, module.init(jax.random.key(0), jnp.ones((1, 3))))


def predict(model, inputs):
    return {"line": line_predictions(model, inputs["x"])}


MODELS = {
    "nnx": (Net, None, X),
    "linen": (linen, None, X),
    "equinox": (lambda: eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0)), lambda model, x: jax.vmap(model)(x), X),
    "a dict": (lambda: line(value=0.5), predict, {"x": X}),
}

BARE = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("learner", "flax", "equinox", "optax"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import jax, numpy as np
from pathlib import Path
from safetensors.numpy import load_file
program = jax.export.deserialize(bytearray(Path("model.jaxexport").read_bytes()))
inputs = np.load("../inputs.npy")
outputs = program.call(load_file("weights.safetensors"), inputs)
np.save("../outputs.npy", np.asarray(outputs))
assert "learner" not in sys.modules and "flax" not in sys.modules
print(program.platforms)
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", some(MODELS, ["nnx", "a dict"]))
def test_outputs_equal_the_model(tmp_path, kind):
    make, function, inputs = MODELS[kind]
    model = make()
    path = export_model(tmp_path / "out", model, jax.tree.map(lambda x: x[:1], inputs), function=function)
    program = jax.export.deserialize(bytearray((path / "model.jaxexport").read_bytes()))
    weights = load_file(path / "weights.safetensors")
    if isinstance(model, nnx.Module):
        model.eval()
    for rows in (1, 7, 20):
        batch = jax.tree.map(lambda x, rows=rows: x[:rows], inputs)
        expected = model(batch) if function is None else function(model, batch)
        for x, y in zip(jax.tree.leaves(program.call(weights, batch)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.full
def test_process_without_learner_runs_the_best_model(tmp_path):
    result = build_line(quiet(tmp_path / "run", saves=True).num_epochs(2)).fit(shuffled(), valid_data())
    path = result.export(tmp_path / "out", X, function=line_predictions)
    np.save(tmp_path / "inputs.npy", X)
    process = subprocess.run([sys.executable, "-c", BARE], cwd=path, capture_output=True, text=True)
    assert (process.returncode, process.stdout.strip()) == (0, "('cpu', 'cuda', 'tpu')"), process.stderr
    expected = X @ np.asarray(result.best_model["w"]) + np.asarray(result.best_model["b"])
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, rtol=1e-6)
    card = (path / "README.md").read_text()
    assert f"| valid/Loss | {result.history['valid/Loss'][result.best_step // STEPS - 1]:.6g} |" in card
    assert "| input array | float32[rows, 3] |" in card
    assert "| numbers in weights | 4 |" in card


def test_a_fixed_number_of_rows_and_one_platform(tmp_path):
    path = export_model(tmp_path / "out", Net(), X, batch_size=8, platforms=["cpu"])
    program = jax.export.deserialize(bytearray((path / "model.jaxexport").read_bytes()))
    assert (program.platforms, program.out_avals[0].shape) == (("cpu",), (8, 4))


@pytest.mark.parametrize(
    ("model", "inputs", "options", "code"),
    [
        (line, X, {}, "export-function-missing"),
        (lambda: lambda x, times: x, X, {}, "export-function-missing"),
        (Net, np.float32(1), {}, "export-input-without-rows"),
        (Net, X, {"batch_size": 0}, "export-batch-size"),
        (Net, X[:, :2], {}, "export-impossible"),
        (Net, X, {"platforms": ["abacus"]}, "export-platforms"),
        (Net, X, {"platforms": "cpu"}, "export-platforms"),
        (Net, X, {"function": lambda model, x: model(x)[: int(x.shape[0])]}, "export-impossible"),
    ],
)
def test_wrong_arguments(tmp_path, model, inputs, options, code):
    with raises_code(code):
        export_model(tmp_path / "out", model(), inputs, **options)
    assert not (tmp_path / "out").exists()


def test_float8_weights_are_refused_before_writing(tmp_path):
    model = {"w": jnp.ones((3, 2), jnp.float8_e4m3fn)}
    with raises_code("export-float8", "are float8", "bfloat16"):
        export_model(tmp_path / "out", model, X[:2], function=lambda model, x: x @ model["w"].astype(jnp.float32))
    assert not (tmp_path / "out").exists()


def test_fixed_batch_size_raises_with_line_and_remedies(tmp_path):
    def flattened(model, x):
        return model(x.reshape(len(x), -1))

    line = flattened.__code__.co_firstlineno + 1
    with raises_code(
        "export-impossible", f"({__file__}, line {line})", "x.shape[0]", "reshape(-1, n)", "--batch_size="
    ):
        export_model(tmp_path / "out", Net(), X, function=flattened)
    by_shape = lambda model, x: model(x.reshape(x.shape[0], -1))  # noqa: E731
    by_number = lambda model, x: model(x.reshape(-1, 3))  # noqa: E731
    for number, (function, options) in enumerate([(by_shape, {}), (by_number, {}), (flattened, {"batch_size": 8})]):
        export_model(tmp_path / str(number), Net(), X, function=function, **options)


def test_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").touch()
    with raises_code("export-directory-used"):
        export_model(tmp_path, Net(), X)
    (tmp_path / "mine.txt").unlink()
    for _ in range(2):
        export_model(tmp_path, Net(), X)
    assert len(list(tmp_path.iterdir())) == 3


def test_last_model_of_a_run_without_checkpoints(tmp_path):
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=line_step)
    result = learner.fit(shuffled())
    with raises_code("learner-best-not-kept"):
        result.export(tmp_path / "out", X, function=predict)
    assert result.export(tmp_path / "out", {"x": X}, best=False, function=predict).is_dir()


@pytest.mark.full
def test_card_of_a_restored_model(tmp_path):
    def scripted_step(model, batch):
        return RegressionOutput.from_predictions(0 * batch["t"], batch["t"])

    builder = quiet(tmp_path / "run", saves=True).num_epochs(3).restore_best()
    learner = builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=scripted_step)
    result = learner.fit(shuffled(), scripted(9.0, 1.0, 4.0))
    path = result.export(tmp_path / "out", X, best=False, function=line_predictions)
    assert "| valid/Loss | 1 |" in (path / "README.md").read_text()


class Sampled(nnx.Module):
    """A model that drops units in eval mode, too."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones((1, 3)))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.drop(x * self.scale, deterministic=False)


def test_random_numbers_in_an_exported_program_are_warned_about(tmp_path):
    """They are the same in each call."""
    with pytest.warns(UserWarning, match="the exported program draws random numbers"):
        export_model(tmp_path / "out", Sampled(), X)
    export_model(tmp_path / "mean", Sampled(), X, function=lambda model, x: (model(x), x)[1])

    def drawn(model, inputs):
        key = jax.random.fold_in(jax.random.key(0), inputs["seed"][0])
        return inputs["x"] + jax.random.normal(key, inputs["x"].shape)

    export_model(tmp_path / "drawn", Sampled(), {"x": X, "seed": np.zeros(len(X), np.int32)}, function=drawn)


def test_metrics_that_the_card_cannot_show_leave_the_earlier_export(tmp_path):
    export_model(tmp_path / "out", line(), X, function=line_predictions, metrics={"Loss": 0.5})
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ValueError, match="format"):
        export_model(tmp_path / "out", line(value=1.0), X, function=line_predictions, metrics={"Loss": "low"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_function_of_a_dict_that_gets_an_array_is_named(tmp_path):
    with raises_code("export-impossible", "pass a dict"):
        export_model(tmp_path / "out", line(), X, function=lambda model, batch: batch["x"] @ model["w"])
