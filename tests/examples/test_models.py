import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.support.stopped import some

CASES = {
    "MLP": ({"features": [64, 16, 10]}, {"image": (5, 8, 8)}, (5, 10)),
    "CNN": ({"channels": [4, 8]}, {"image": (5, 8, 8)}, (5, 10)),
    "Regressor": ({"inputs": 10, "hidden": [8, 8]}, {"features": (5, 10)}, (5,)),
}


@pytest.fixture(scope="module")
def models():
    return importlib.import_module("learner.examples.models")


@pytest.mark.full
@pytest.mark.parametrize("name", some(CASES, {"MLP"}))
def test_a_step_its_gradients_and_its_dropout(models, name):
    settings, shapes, expected = CASES[name]
    model = getattr(models, name)(**settings, dropout=0.5, rngs=nnx.Rngs(0))
    batch = {key: jax.random.normal(jax.random.key(1), shape) for key, shape in shapes.items()}
    batch |= {"label": jnp.arange(5), "target": jnp.arange(5, dtype=jnp.float32)}

    @nnx.jit
    @nnx.value_and_grad(has_aux=True)
    def train(model):
        output = model.train_step(batch)
        return output.loss, output

    (loss, output), grads = train(model)
    assert (output.logits if hasattr(output, "logits") else output.predictions).shape == expected
    assert output.weight == 5
    assert np.isfinite(loss)
    assert all(np.abs(g).sum() > 0 for g in jax.tree.leaves(grads))
    assert train(model)[0][0] != loss
    valid = nnx.jit(lambda model: model.valid_step(batch).loss)
    model.eval()
    assert valid(model) == valid(model)


@pytest.fixture(scope="module")
def transformer(models):
    return models.CharTransformer(characters=11, width=8, layers=1, heads=2, rngs=nnx.Rngs(0))


call = nnx.jit(lambda model, text: model(text))


@pytest.mark.full
def test_transformer_is_causal(transformer):
    text = jax.random.randint(jax.random.key(0), (1, 9), 0, 11)
    changed = text.at[0, 5].set((text[0, 5] + 1) % 11)
    before, after = call(transformer, text), call(transformer, changed)
    assert before.shape == (1, 9, 11)
    different = jnp.abs(before - after).max(-1)[0] > 0
    assert different.tolist() == [False] * 5 + [True] * 4


@pytest.mark.full
def test_transformer_depends_on_positions(transformer):
    logits = call(transformer, jnp.array([[3, 4, 5, 1], [4, 3, 5, 1]]))
    assert jnp.abs(logits[0, 3] - logits[1, 3]).max() > 1e-4


@pytest.mark.full
def test_the_transformers_loss(transformer):
    text = jnp.array([[1, 2, 3], [3, 2, 1]])
    output = nnx.jit(lambda model: model.train_step({"text": text, "target": (text + 1) % 11}))(transformer)
    logits = np.asarray(call(transformer, text), np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, np.asarray((text + 1) % 11)[..., None], -1)
    assert float(output.loss) == pytest.approx(-chosen.mean(), rel=1e-5)
    assert output.weight == 6


def test_rotary_products_depend_only_on_the_distance(models):
    x = jnp.tile(jax.random.normal(jax.random.key(0), (1, 1, 1, 8)), (1, 6, 1, 1))
    rotated = np.asarray(jax.jit(models.rotate)(x))[0, :, 0]
    products = rotated @ rotated.T
    for distance in range(6):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-5)
    assert abs(products[0, 0] - products[0, 3]) > 0.01
    np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), np.linalg.norm(x[0, 0, 0]), rtol=1e-5)
