"""Files of PyTorch: the expected outputs are computed with NumPy as PyTorch defines its layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from learner import Linen, load_model
from learner.errors import LearnerError
from learner.records import SafetensorsRecorder
from learner.records.pytorch import as_flax
from learner.records.stored import Stored
from tests.support.codes import raises_code

pytestmark = pytest.mark.usefixtures("compiled_once")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(5, 4)).astype(np.float32)
IMAGES = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)  # channels first


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def linear(x, weights, name):
    """`torch.nn.Linear`: x Wᵀ + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def conv(x, weight, bias, groups=1):
    """`torch.nn.Conv2d` with padding 1: a correlation, one number after another."""
    out, inner, height, width = weight.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = np.zeros((x.shape[0], out, *x.shape[2:]))
    for n, o, i, j in np.ndindex(y.shape):
        first = o // (out // groups) * inner
        y[n, o, i, j] = (padded[n, first : first + inner, i : i + height, j : j + width] * weight[o]).sum() + bias[o]
    return y


def normed(x, weights, name, axis):
    """`torch.nn.BatchNorm` in eval mode."""
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    mean, var, scale, bias = (
        weights[f"{name}.{part}"].reshape(shape) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


MLP = {"0.weight": numbers(6, 4), "0.bias": numbers(6), "2.weight": numbers(3, 6), "2.bias": numbers(3)}
EXPECTED_MLP = linear(np.maximum(linear(X, MLP, "0"), 0), MLP, "2")

CNN = {
    "conv.weight": numbers(4, 3, 3, 3),
    "conv.bias": numbers(4),
    "norm.weight": numbers(4),
    "norm.bias": numbers(4),
    "norm.running_mean": numbers(4),
    "norm.running_var": np.abs(numbers(4)) + np.float32(0.1),
    "norm.num_batches_tracked": np.asarray(7),
    "head.weight": numbers(3, 4 * 5 * 4),
    "head.bias": numbers(3),
}
_features = np.maximum(normed(conv(IMAGES, CNN["conv.weight"], CNN["conv.bias"]), CNN, "norm", 1), 0)
EXPECTED_CNN = linear(_features.reshape(2, -1), CNN, "head")


class NnxCNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.head = nnx.Linear(80, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x))).transpose(0, 3, 1, 2)
        return self.head(x.reshape(x.shape[0], -1))


class LinenCNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), padding=1, name="conv")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=True, name="norm")(x)).transpose(0, 3, 1, 2)
        return nn.Dense(3, name="head")(x.reshape(x.shape[0], -1))


def read(weights, model, **how):
    return SafetensorsRecorder().from_bytes(safetensors.numpy.save(weights), model, layout="torch", **how)


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)


def test_an_mlp_of_pytorch(tmp_path):
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(4, 6, rngs=rngs), nnx.relu, nnx.Linear(6, 3, rngs=rngs))
    safetensors.numpy.save_file(MLP, tmp_path / "mlp.safetensors")
    loaded = load_model(tmp_path / "mlp.safetensors", model, layout="torch", rename=[(r"^(\d)", r"layers.\1")])
    close(loaded(jnp.asarray(X)), EXPECTED_MLP)


def test_a_cnn_of_pytorch_in_nnx():
    reports = []
    model = read(CNN, NnxCNN(nnx.Rngs(0)), report=reports.append)
    model.eval()
    close(model(jnp.asarray(IMAGES.transpose(0, 2, 3, 1))), EXPECTED_CNN)
    assert reports[0].complete  # num_batches_tracked has no counterpart
    assert reports[0].renamed["norm.mean"] == "norm.running_mean"


def test_a_cnn_of_pytorch_in_linen():
    module, x = LinenCNN(), jnp.asarray(IMAGES.transpose(0, 2, 3, 1))
    model = read(CNN, Linen(module, module.init(jax.random.key(0), x)))
    close(model(x), EXPECTED_CNN)


@pytest.mark.full
def test_equinox_has_the_axes_of_pytorch():
    import equinox as eqx

    one, two = jax.random.split(jax.random.key(0))
    model = {"conv": eqx.nn.Conv2d(3, 4, 3, padding=1, key=one), "head": eqx.nn.Linear(80, 3, key=two)}
    part = {name: x for name, x in CNN.items() if not name.startswith("norm")}
    loaded = read(part, model)
    x = jax.vmap(loaded["conv"])(jnp.asarray(IMAGES))
    expected = conv(IMAGES, CNN["conv.weight"], CNN["conv.bias"])
    close(x, expected)
    close(jax.vmap(loaded["head"])(jnp.reshape(x, (2, -1))), linear(expected.reshape(2, -1), CNN, "head"))


@pytest.mark.full
def test_convolutions_in_groups():
    weight, bias = numbers(6, 1, 3, 3), numbers(6)
    model = read(
        {"weight": weight, "bias": bias},
        nnx.Conv(3, 6, (3, 3), padding=1, feature_group_count=3, rngs=nnx.Rngs(0)),
    )
    y = model(jnp.asarray(IMAGES.transpose(0, 2, 3, 1)))
    close(np.asarray(y).transpose(0, 3, 1, 2), conv(IMAGES, weight, bias, groups=3))


@pytest.mark.full
def test_embeddings_and_layer_norms():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(7, 4, rngs=rngs)
            self.norm = nnx.LayerNorm(4, epsilon=1e-5, rngs=rngs)

        def __call__(self, tokens):
            return self.norm(self.embed(tokens))

    weights = {"embed.weight": numbers(7, 4), "norm.weight": numbers(4), "norm.bias": numbers(4)}
    tokens = np.array([6, 0, 3])
    x = weights["embed.weight"][tokens]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    close(read(weights, Model(nnx.Rngs(0)))(tokens), x * weights["norm.weight"] + weights["norm.bias"])


@pytest.mark.parametrize(
    ("shape", "turned"),
    [((5, 2), (2, 5)), ((5, 2, 3), (3, 2, 5)), ((5, 2, 3, 4), (3, 4, 2, 5)), ((5, 2, 3, 4, 6), (3, 4, 6, 2, 5))],
)
def test_the_axes_of_kernels(shape, turned):
    weight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    arrays, paths = as_flax({"a.weight": Stored("float32", weight)}, {}, {"a.kernel": np.zeros(turned)})
    assert arrays["a.kernel"].shape == turned
    assert paths == {"a.kernel": "a.weight"}
    for index in np.ndindex(shape):
        assert arrays["a.kernel"].data[(*index[2:], index[1], index[0])] == weight[index]


def test_what_does_not_fit_is_named_as_in_the_file():
    weights = {**CNN, "extra.weight": numbers(2), "head.weight": numbers(3, 79)}
    with pytest.raises(LearnerError) as caught:
        read(weights, NnxCNN(nnx.Rngs(0)))
    assert "  head.kernel: float32[79, 3] in the file, float32[80, 3] in the model" in str(caught.value).split("\n")
    assert "  extra.weight: float32[2] in the file, not in the model" in str(caught.value).split("\n")


def test_layers_that_may_fit_by_chance_are_refused():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.ConvTranspose(3, 3, (2, 2), rngs=rngs)

    with raises_code("record-torch-layout-unknown", "ConvTranspose"):
        read({"up.weight": numbers(3, 3, 2, 2), "up.bias": numbers(3)}, Model(nnx.Rngs(0)))


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_pickle_of_pytorch_is_refused_with_its_conversion(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"PK\3\4")
    with pytest.raises(LearnerError) as caught:
        load_model(path, {"w": jnp.zeros(1)})
    converted = str(tmp_path / "model.safetensors")
    assert f"torch.save_file(torch.load({str(path)!r}, weights_only=True), {converted!r})" in str(caught.value)
    assert f'load_model({converted!r}, model, layout="torch")' in str(caught.value)
