"""Tests of exporting models to ONNX: ONNX Runtime computes the outputs of eval mode, or the export is refused."""

import sys

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput, Linen, eval_mode
from learner.records import export_model
from learner.records.onnx import onnx_program
from learner.util.distribution import install_hint
from tests.support.codes import raises_code
from tests.support.runs import Net, X, arrays, build_net, line, line_predictions, quiet, shuffled, valid_data

runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
jax2onnx = pytest.importorskip("jax2onnx", reason="the extra onnx is not installed")

IMAGES = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)


class Convolutions(nnx.Module):
    """Convolutions, batch statistics, pooling over two of four axes, and dropout."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.first = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.second = nnx.Conv(4, 4, (3, 3), strides=2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, images):
        x = nnx.max_pool(nnx.relu(self.norm(self.first(images[..., None]))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.gelu(self.second(x)), (3, 2), (1, 1), "SAME")
        return self.head(self.drop(x.reshape(x.shape[0], -1)))


class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True)(nn.Dense(8)(x))
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=True)(nn.relu(x)))


class Patches(eqx.Module):
    conv: eqx.nn.Conv2d
    drop: eqx.nn.Dropout

    def __init__(self):
        self.conv = eqx.nn.Conv2d(1, 4, 3, key=jax.random.key(0))
        self.drop = eqx.nn.Dropout(0.5)

    def __call__(self, image):
        return eqx.nn.MaxPool2d(2, 2)(self.drop(self.conv(image[None]))).ravel()


def linen():
    return Linen(Dense(), Dense().init(jax.random.key(0), jnp.ones((1, 3))))


def several(model, inputs):
    y = line_predictions(model, inputs["x"])
    return {"y": y, "x": inputs["x"] + 1.0, "sums": jnp.cumsum(y, 0), "class": inputs["n"].argmax(-1)}


MODELS = {
    "nnx convolutions": (Convolutions, None, IMAGES),
    "nnx": (Net, None, X),
    "equinox": (Patches, lambda model, x: jax.vmap(model)(x), IMAGES),
    "linen": (linen, None, X),
    "a dict, several arrays": (lambda: line(value=0.5), several, {"x": X, "n": np.int32(X * 10)}),
}


def run(path, **inputs):
    """Return the outputs of a file by name, computed by ONNX Runtime."""
    session = runtime.InferenceSession(path / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("kind", MODELS)
def test_onnx_runtime_computes_the_outputs_of_the_model(tmp_path, kind):
    make, function, inputs = MODELS[kind]
    cumsum, model = jnp.cumsum, make()
    path = export_model(tmp_path / "out", model, inputs, function=function, format="onnx")
    assert jnp.cumsum is cumsum  # jax2onnx replaces it when it is imported
    assert sorted(file.name for file in path.iterdir()) == ["README.md", "model.onnx"]
    model = eval_mode(model)
    for rows in (1, 3):
        batch = jax.tree.map(lambda x, rows=rows: x[:rows], inputs)
        expected = model(batch) if function is None else function(model, batch)
        if isinstance(batch, dict):
            outputs = run(path, **batch)
            assert outputs.keys() == {"y", "outputs.x", "sums", "class"}
            outputs = {name.removeprefix("outputs."): x for name, x in outputs.items()}
        else:
            outputs = run(path, inputs=batch)["outputs"]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), outputs, expected)


def test_exported_best_model_equals_predict(tmp_path):
    learner = build_net(quiet(tmp_path / "run", saves=True).num_epochs(2))
    result = learner.fit(shuffled(), valid_data())
    export_model(tmp_path / "out", Net(), X, platforms=["cpu"])
    path = result.export(tmp_path / "out", X, format="onnx", batch_size=20)
    # files of the other format are removed
    assert sorted(file.name for file in path.iterdir()) == ["README.md", "model.onnx"]
    best = quiet(tmp_path / "best").build(result.best_model, optax.sgd, 0.1)
    (output,) = best.predict([arrays(20)])
    assert isinstance(output, ClassificationOutput)
    np.testing.assert_allclose(run(path, inputs=X[:20])["outputs"], output.logits, rtol=1e-4, atol=1e-5)
    card = (path / "README.md").read_text()
    assert "| input array | float32[20, 3] |" in card
    assert 'session.run(None, {"inputs": inputs})' in card


@pytest.mark.parametrize(
    ("model", "function", "options", "code"),
    [
        (Net, None, {"format": "onxn"}, "export-format-unknown"),
        (Net, None, {"platforms": ["cpu"]}, "export-platforms"),
        (lambda: line(3, 3), lambda model, x: jnp.linalg.qr(x)[0], {}, "export-impossible"),
        (lambda: {"w": jnp.ones((3, 1), jnp.bfloat16)}, lambda m, x: x.astype(jnp.bfloat16) @ m["w"], {}, None),
    ],
)
def test_models_that_cannot_be_exported(tmp_path, model, function, options, code):
    with raises_code(code or "export-onnx-unsupported"):
        export_model(tmp_path / "out", model(), X, function=function, **{"format": "onnx", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [lambda x: x + 0.01, lambda x: x[:1], lambda x: x[..., 0]])
def test_a_wrong_conversion_is_refused(tmp_path, monkeypatch, wrong):
    convert = jax2onnx.to_onnx
    converted = lambda f, *rest, **more: convert(lambda x: [wrong(y) for y in f(x)], *rest, **more)  # noqa: E731
    monkeypatch.setattr(jax2onnx, "to_onnx", converted)
    with raises_code("export-onnx-differs"):
        onnx_program(lambda x: 2.0 * x, X, jax.ShapeDtypeStruct((jax.export.symbolic_shape("rows")[0], 3), jnp.float32))


def test_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with raises_code("package-missing", "jax2onnx", install_hint("onnx"), extra="onnx"):
        export_model(tmp_path / "out", Net(), X, format="onnx")
