"""One model at four rates: `conv1` at twice the rate, `conv2` at four times, biases at a tenth, all others at the rate.

`partition_params` splits off a part of the gradients, and an `Optimizer` updates the parameters whose gradients it
gets. Each part has its own state, so that each could also have its own optimizer.

    python -m examples.multiple_optimizers
"""

from collections.abc import Iterator
from typing import Any

import jax
import optax
from flax import nnx

from learner import ClassificationOutput, Optimizer, eval_mode, partition_params, value_and_grad
from learner.data import DataLoaderBuilder, digits
from learner.metrics import Accuracy, Info

FACTORS = {"biases": 0.1, "conv1": 2.0, "conv2": 4.0, "rest": 1.0}
"""By what the rate of each part is multiplied."""

opt = Optimizer(optax.adam)


class Network(nnx.Module):
    """Two convolutions and a dense layer, for images of 8 by 8 pixels."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 8, (3, 3), strides=2, rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(2 * 2 * 16, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `[batch, 8, 8]` to logits `[batch, 10]`."""
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(images[..., None]))))
        return self.head(x.reshape(x.shape[0], -1))


def step(model: Network, batch: Any) -> ClassificationOutput:
    """Return the output of a batch."""
    return ClassificationOutput.from_logits(model(batch["image"]), batch["label"])


def parts(tree: Any) -> Iterator[tuple[str, Any]]:
    """Return the parts of a model, or of its gradients, by name; every parameter is in one of them."""
    biases, rest = partition_params(tree, lambda path, array: path.endswith("bias"))
    yield "biases", biases
    for name in ("conv1", "conv2"):
        part, rest = partition_params(rest, name)
        yield name, part
    yield "rest", rest


@jax.jit
def train_step(model: Network, states: dict[str, Any], lr: Any, batch: Any) -> tuple[Network, dict[str, Any], Any]:
    """Perform one step of every part; return the model, the optimizers' states and the loss."""
    output, grads = value_and_grad(step)(model, batch)
    for name, part in parts(grads):
        model, states[name] = opt.step(FACTORS[name] * lr, model, part, states[name])
    return model, states, output.loss


@jax.jit
def evaluate(model: Network, batch: Any) -> Any:
    """Return the accuracy."""
    output, accuracy = step(eval_mode(model), batch), Accuracy()
    return accuracy.compute(accuracy.update(accuracy.init(), output, Info(0, output.weight)))


def main(num_epochs: int = 5, lr: float = 1e-3) -> tuple[Network, float]:
    """Train to a validation accuracy above 90 %; return the model and the accuracy."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(360).build(digits("valid"))
    model, accuracy = Network(nnx.Rngs(0)), 0.0
    states = {name: opt.init(part) for name, part in parts(model)}
    for epoch in range(1, num_epochs + 1):
        for batch in train:
            model, states, loss = train_step(model, states, lr, batch)
        accuracy = float(evaluate(model, next(iter(valid))))
        print(f"epoch {epoch}: loss {float(loss):.4f}, accuracy {accuracy:.4f}")
    return model, accuracy


if __name__ == "__main__":
    main()
