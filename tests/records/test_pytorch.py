"""Tests of loading PyTorch's weights. NumPy computes the expected outputs from the definitions of PyTorch's layers."""

import functools

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
from learner.records.torch_layers import Part
from tests.support.codes import raises_code

pytestmark = pytest.mark.usefixtures("compiled_once")

FULL = functools.partial(pytest.param, marks=pytest.mark.full)
RNG = np.random.default_rng(3)
X = RNG.normal(size=(5, 4)).astype(np.float32)
IMAGES = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)  # channels first


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def linear(x, weights, name):
    """Return the output of `torch.nn.Linear`: x Wᵀ + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def conv(x, weight, bias, groups=1):
    """Return the output of `torch.nn.Conv2d` with padding 1, a correlation, element by element."""
    out, inner, height, width = weight.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = np.zeros((x.shape[0], out, *x.shape[2:]))
    for n, o, i, j in np.ndindex(y.shape):
        first = o // (out // groups) * inner
        y[n, o, i, j] = (padded[n, first : first + inner, i : i + height, j : j + width] * weight[o]).sum() + bias[o]
    return y


def batch_norm(x, weights, name, axis):
    """Return the output of `torch.nn.BatchNorm` in eval mode."""
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
_features = np.maximum(batch_norm(conv(IMAGES, CNN["conv.weight"], CNN["conv.bias"]), CNN, "norm", 1), 0)
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


def read(weights, model, **options):
    return SafetensorsRecorder().from_bytes(safetensors.numpy.save(weights), model, layout="torch", **options)


def assert_close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_mlp(tmp_path):
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(4, 6, rngs=rngs), nnx.relu, nnx.Linear(6, 3, rngs=rngs))
    safetensors.numpy.save_file(MLP, tmp_path / "mlp.safetensors")
    loaded = load_model(tmp_path / "mlp.safetensors", model, layout="torch", rename=[(r"^(\d)", r"layers.\1")])
    assert_close(loaded(jnp.asarray(X)), EXPECTED_MLP)


@pytest.mark.full
def test_cnn_in_nnx():
    reports = []
    model = read(CNN, NnxCNN(nnx.Rngs(0)), report=reports.append)
    model.eval()
    assert_close(model(jnp.asarray(IMAGES.transpose(0, 2, 3, 1))), EXPECTED_CNN)
    assert reports[0].complete  # num_batches_tracked has no counterpart
    assert reports[0].renamed["norm.mean"] == "norm.running_mean"


@pytest.mark.full
def test_cnn_in_linen():
    module, x = LinenCNN(), jnp.asarray(IMAGES.transpose(0, 2, 3, 1))
    model = read(CNN, Linen(module, module.init(jax.random.key(0), x)))
    assert_close(model(x), EXPECTED_CNN)


@pytest.mark.full
def test_convolutions_and_linear_layers_in_equinox():
    import equinox as eqx

    one, two = jax.random.split(jax.random.key(0))
    model = {"conv": eqx.nn.Conv2d(3, 4, 3, padding=1, key=one), "head": eqx.nn.Linear(80, 3, key=two)}
    part = {name: x for name, x in CNN.items() if not name.startswith("norm")}
    loaded = read(part, model)
    x = jax.vmap(loaded["conv"])(jnp.asarray(IMAGES))
    expected = conv(IMAGES, CNN["conv.weight"], CNN["conv.bias"])
    assert_close(x, expected)
    assert_close(jax.vmap(loaded["head"])(jnp.reshape(x, (2, -1))), linear(expected.reshape(2, -1), CNN, "head"))


@pytest.mark.full
def test_convolutions_in_groups():
    weight, bias = numbers(6, 1, 3, 3), numbers(6)
    model = read(
        {"weight": weight, "bias": bias},
        nnx.Conv(3, 6, (3, 3), padding=1, feature_group_count=3, rngs=nnx.Rngs(0)),
    )
    y = model(jnp.asarray(IMAGES.transpose(0, 2, 3, 1)))
    assert_close(np.asarray(y).transpose(0, 3, 1, 2), conv(IMAGES, weight, bias, groups=3))


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
    assert_close(read(weights, Model(nnx.Rngs(0)))(tokens), x * weights["norm.weight"] + weights["norm.bias"])


@pytest.mark.parametrize(
    ("shape", "turned"),
    [((5, 2), (2, 5)), ((5, 2, 3), (3, 2, 5)), ((5, 2, 3, 4), (3, 4, 2, 5)), ((5, 2, 3, 4, 6), (3, 4, 6, 2, 5))],
)
def test_axes_of_kernels(shape, turned):
    weight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    parts = {"a.weight": Part(Stored("float32", weight), "a.weight")}
    kernel = as_flax(parts, {"a.kernel": np.zeros(turned)}, None)["a.kernel"]
    assert (kernel.stored.shape, kernel.origin) == (turned, "a.weight")
    for index in np.ndindex(shape):
        assert kernel.stored.data[(*index[2:], index[1], index[0])] == weight[index]


@pytest.mark.full
def test_differences_are_listed_with_paths_of_the_file():
    weights = {**CNN, "extra.weight": numbers(2), "head.weight": numbers(3, 79)}
    with pytest.raises(LearnerError) as caught:
        read(weights, NnxCNN(nnx.Rngs(0)))
    assert "  head.kernel: float32[79, 3] in the file, float32[80, 3] in the model" in str(caught.value).split("\n")
    assert "  extra.weight: float32[2] in the file, not in the model" in str(caught.value).split("\n")


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ATTENTION = {
    "attn.in_proj_weight": numbers(18, 6),
    "attn.in_proj_bias": numbers(18),
    "attn.out_proj.weight": numbers(6, 6),
    "attn.out_proj.bias": numbers(6),
}
WORDS = numbers(2, 5, 6)


def attention(x):
    """Return the self-attention of `torch.nn.MultiheadAttention(6, 2)` for [batch, length, 6]."""
    queries, keys, values = np.split(x @ ATTENTION["attn.in_proj_weight"].T + ATTENTION["attn.in_proj_bias"], 3, -1)
    heads = []
    for head in (slice(0, 3), slice(3, 6)):
        scores = queries[..., head] @ keys[..., head].transpose(0, 2, 1) / np.sqrt(3)
        heads.append(softmax(scores) @ values[..., head])
    return linear(np.concatenate(heads, -1), ATTENTION, "attn.out_proj")


class NnxAttention(nnx.Module):
    def __init__(self, **options):
        self.attn = nnx.MultiHeadAttention(2, 6, decode=False, rngs=nnx.Rngs(0), **options)


@pytest.mark.full
def test_attention_in_nnx():
    reports = []
    model = read(ATTENTION, NnxAttention(), report=reports.append)
    np.testing.assert_allclose(model.attn(jnp.asarray(WORDS)), attention(WORDS), atol=1e-5)
    assert reports[0].renamed["attn.key.kernel"] == "attn.in_proj_weight[6:12]"
    assert reports[0].transformed["attn.key.kernel"] == "axes 1, 0, shape [6, 2, 3]"
    line = "  renamed: attn.out_proj.weight -> attn.out.kernel (axes 1, 0, shape [2, 3, 6])"
    assert line in str(reports[0]).split("\n")


@pytest.mark.full
def test_attention_in_equinox():
    import equinox as eqx

    biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    model = read(ATTENTION, {"attn": eqx.nn.MultiheadAttention(2, 6, key=jax.random.key(0), **biases)})
    actual = jax.vmap(lambda x: model["attn"](x, x, x))(jnp.asarray(WORDS))
    np.testing.assert_allclose(actual, attention(WORDS), atol=1e-5)


@pytest.mark.full
def test_separate_projections():
    """`MultiheadAttention(kdim=, vdim=)` and Hugging Face's models store one array per projection."""
    weights = {path: x for path, x in ATTENTION.items() if "in_proj" not in path}
    for name, rows in (("q", slice(0, 6)), ("k", slice(6, 12)), ("v", slice(12, 18))):
        weights[f"attn.{name}_proj_weight"] = ATTENTION["attn.in_proj_weight"][rows]
    torch = read({**weights, "attn.in_proj_bias": ATTENTION["attn.in_proj_bias"]}, NnxAttention())
    renamed = {path.replace("_proj_weight", "_proj.weight").replace("out_", "o_"): x for path, x in weights.items()}
    biases = np.split(ATTENTION["attn.in_proj_bias"], 3)
    hugging_face = {**renamed, **{f"attn.{name}_proj.bias": x for name, x in zip("qkv", biases, strict=True)}}
    for model in (torch, read(hugging_face, NnxAttention())):
        np.testing.assert_allclose(model.attn(jnp.asarray(WORDS)), attention(WORDS), atol=1e-5)


def test_part_of_an_array_missing_in_the_model():
    with raises_code("record-model-differs", "attn.in_proj_bias[6:12]: float32[6] in the file, not in the model"):
        read(ATTENTION, NnxAttention(use_bias=False))


def recurrent(gates, hidden=3, inner=6):
    weights = {"weight_ih_l0": numbers(gates * hidden, inner), "weight_hh_l0": numbers(gates * hidden, hidden)}
    return weights | {"bias_ih_l0": numbers(gates * hidden), "bias_hh_l0": numbers(gates * hidden)}


LSTM, GRU, ELMAN = recurrent(4), recurrent(3), recurrent(1)


def outputs(weights, x):
    """Return the hidden states of `torch.nn.LSTM`, `GRU` or `RNN` for [batch, length, inner]."""
    hidden = np.zeros((x.shape[0], 3))
    cell, states = hidden, []
    for t in range(x.shape[1]):
        a = x[:, t] @ weights["weight_ih_l0"].T + weights.get("bias_ih_l0", 0)
        b = hidden @ weights["weight_hh_l0"].T + weights.get("bias_hh_l0", 0)
        if weights["weight_hh_l0"].shape[0] == 12:
            i, f, g, o = np.split(a + b, 4, -1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(cell)
        elif weights["weight_hh_l0"].shape[0] == 9:
            (ar, az, an), (br, bz, bn) = np.split(a, 3, -1), np.split(b, 3, -1)
            z = sigmoid(az + bz)
            hidden = (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * hidden
        else:
            hidden = np.tanh(a + b)
        states.append(hidden)
    return np.stack(states, 1)


def gru_with_both_biases():
    cell = nnx.GRUCell(6, 3, rngs=nnx.Rngs(0))
    cell.dense_h = nnx.Linear(3, 9, rngs=nnx.Rngs(0))
    return cell


@pytest.mark.full
@pytest.mark.parametrize(
    ("weights", "cell"),
    [
        (LSTM, lambda: nnx.LSTMCell(6, 3, rngs=nnx.Rngs(0))),
        FULL(LSTM, lambda: nnx.OptimizedLSTMCell(6, 3, rngs=nnx.Rngs(0))),
        ({name: x for name, x in LSTM.items() if "bias" not in name}, lambda: nnx.LSTMCell(6, 3, rngs=nnx.Rngs(0))),
        (GRU, gru_with_both_biases),
        (ELMAN, lambda: nnx.SimpleCell(6, 3, rngs=nnx.Rngs(0))),
    ],
    ids=["LSTM", "OptimizedLSTM", "LSTM-without-bias", "GRU", "RNN"],
)
def test_recurrent_layers_in_nnx(weights, cell):
    model = read(weights, nnx.RNN(cell()))
    np.testing.assert_allclose(model(jnp.asarray(WORDS)), outputs(weights, WORDS), atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("weights", "cell"), [(LSTM, nn.LSTMCell), FULL(LSTM, nn.OptimizedLSTMCell), FULL(GRU, nn.GRUCell)]
)
def test_recurrent_layers_in_linen(weights, cell):
    module, x = nn.RNN(cell(3)), jnp.asarray(WORDS)
    model = read(weights, Linen(module, module.init(jax.random.key(0), x)))
    np.testing.assert_allclose(model(x), outputs(weights, WORDS), atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["LSTM", FULL("GRU")])
def test_recurrent_cells_in_equinox(name):
    import equinox as eqx

    weights = {"LSTM": LSTM, "GRU": GRU}[name]
    cell = read(weights, getattr(eqx.nn, f"{name}Cell")(6, 3, key=jax.random.key(0)))
    states = [(jnp.zeros(3), jnp.zeros(3)) if name == "LSTM" else jnp.zeros(3)]
    for x in jnp.asarray(WORDS[0]):
        states.append(cell(x, states[-1]))
    actual = jnp.stack([state[0] if name == "LSTM" else state for state in states[1:]])
    np.testing.assert_allclose(actual, outputs(weights, WORDS)[0], atol=1e-5)


@pytest.mark.full
def test_layers_and_directions_of_a_recurrent_layer():
    rngs = nnx.Rngs(0)
    one, two = (nnx.RNN(nnx.SimpleCell(6, 3, rngs=rngs)) for _ in range(2))
    back = {f"{name}_reverse": x for name, x in recurrent(1).items()}
    file = {f"rnn.{name.replace('_l0', '_l1')}": x for name, x in {**ELMAN, **back}.items()}
    rename = [(r"^rnn\.(\w+)_l(\d)", r"layers.\2.\1_l0")]
    model = {"layers": {"1": nnx.Bidirectional(one, two, rngs=rngs)}}
    model = read(file, nnx.Dict(layers=nnx.Dict(model["layers"])), rename=rename)
    forward = outputs(ELMAN, WORDS)
    backward = outputs({name.removesuffix("_reverse"): x for name, x in back.items()}, WORDS[:, ::-1])[:, ::-1]
    actual = model["layers"]["1"](jnp.asarray(WORDS))
    np.testing.assert_allclose(actual, np.concatenate([forward, backward], -1), atol=1e-5)


@pytest.mark.full
def test_gru_bias_that_flax_lacks():
    model = nnx.RNN(nnx.GRUCell(6, 3, rngs=nnx.Rngs(0)))
    with raises_code("record-model-differs", "bias_hh_l0[6:9]", "cell.dense_h = nnx.Linear(3, 9, rngs=rngs)"):
        read(GRU, model)
    weights = {**GRU, "bias_hh_l0": np.concatenate([GRU["bias_hh_l0"][:6], np.zeros(3, np.float32)])}
    np.testing.assert_allclose(read(weights, model)(jnp.asarray(WORDS)), outputs(weights, WORDS), atol=1e-5)


def test_weights_of_another_cell_are_listed():
    with raises_code("record-model-differs", "weight_hh_l0: float32[9, 3] in the file, not in the model"):
        read(GRU, nnx.RNN(nnx.LSTMCell(6, 3, rngs=nnx.Rngs(0))))


def conv_transpose(x, weight, bias, stride, groups=1):
    """Return the output of `torch.nn.ConvTranspose2d` without padding: each input adds a multiple of the kernel."""
    inner, outer, height, width = weight.shape
    shape = [(n - 1) * stride + k for n, k in zip(x.shape[2:], (height, width), strict=True)]
    y = np.zeros((x.shape[0], outer * groups, *shape)) + bias[:, None, None]
    for n, c, i, j in np.ndindex(x.shape):
        first = c // (inner // groups) * outer
        y[n, first : first + outer, i * stride : i * stride + height, j * stride : j * stride + width] += (
            x[n, c, i, j] * weight[c]
        )
    return y


@pytest.mark.parametrize("transpose_kernel", [False, True])
def test_transposed_convolutions_in_nnx(transpose_kernel):
    class Model(nnx.Module):
        def __init__(self, rngs):
            options = {"strides": 2, "padding": "VALID", "transpose_kernel": transpose_kernel, "rngs": rngs}
            self.up = nnx.ConvTranspose(3, 3, (2, 3), **options)

    weights = {"up.weight": numbers(3, 3, 2, 3), "up.bias": numbers(3)}
    actual = read(weights, Model(nnx.Rngs(0))).up(jnp.asarray(IMAGES.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(actual, conv_transpose(IMAGES, *weights.values(), stride=2), atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("groups", [FULL(1), 3])
def test_transposed_convolutions_in_equinox(groups):
    import equinox as eqx

    weights = {"up.weight": numbers(3, 6 // groups, 2, 3), "up.bias": numbers(6)}
    layer = eqx.nn.ConvTranspose2d(3, 6, (2, 3), stride=2, groups=groups, key=jax.random.key(0))
    actual = jax.vmap(read(weights, {"up": layer})["up"])(jnp.asarray(IMAGES))
    np.testing.assert_allclose(actual, conv_transpose(IMAGES, *weights.values(), stride=2, groups=groups), atol=1e-5)


def test_unknown_cells_are_refused():
    class Own(nnx.RNNCellBase):
        def __init__(self, rngs):
            self.up = nnx.Linear(3, 3, rngs=rngs)

    with raises_code("record-torch-layout-unknown", "Own"):
        read({"up.weight": numbers(3, 3), "up.bias": numbers(3)}, nnx.Dict(cell=Own(nnx.Rngs(0))))


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_pickle_is_refused_with_its_conversion(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"PK\3\4")
    with pytest.raises(LearnerError) as caught:
        load_model(path, {"w": jnp.zeros(1)})
    converted = str(tmp_path / "model.safetensors")
    assert f"torch.save_file(torch.load({str(path)!r}, weights_only=True), {converted!r})" in str(caught.value)
    assert f'load_model({converted!r}, model, layout="torch")' in str(caught.value)
