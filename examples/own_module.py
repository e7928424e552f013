"""A custom module for a config to name: a model, its data, and a metric. `own_module.yaml` trains it.

The code knows nothing of configs: arguments become keys, and their types are checked.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from learner import ClassificationOutput
from learner.data import ArrayDataset
from learner.metrics import Info, MeanMetric, WeightedMean


def spirals(rows: int, turns: float = 1.5, seed: int = 0) -> ArrayDataset:
    """Return points on two arms of a spiral: `point` float32 `[rows, 2]` and `arm` int32 `[rows]`, 0 or 1."""
    rng = np.random.default_rng(seed)
    arm, radius = rng.integers(0, 2, rows), np.sqrt(rng.uniform(0.02, 1, rows))
    angle = 2 * np.pi * turns * radius + np.pi * arm
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1) + rng.normal(0, 0.03, (rows, 2))
    return ArrayDataset({"point": points.astype(np.float32), "arm": arm.astype(np.int32)})


class SpiralModel(nnx.Module):
    """Dense layers with a sine between them.

    Args:
      width: width of the hidden layers.
      depth: number of hidden layers.
      rngs: random numbers for the initial weights; configs omit them, they come from the config's seed.
    """

    def __init__(self, width: int = 64, depth: int = 2, *, rngs: nnx.Rngs):
        widths = [2, *[width] * depth]
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(widths)])
        self.head = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, points: jax.Array) -> jax.Array:
        """Map `[batch, 2]` to logits `[batch, 2]`."""
        x = 3 * points
        for layer in self.layers:
            x = jnp.sin(layer(x))
        return self.head(x)

    def train_step(self, batch: Any) -> ClassificationOutput:
        """Return the cross-entropy of the arm."""
        return ClassificationOutput.from_logits(self(batch["point"]), batch["arm"])

    valid_step = train_step


class Confidence(MeanMetric):
    """The mean probability of the predicted classes."""

    name = "Confidence"
    fields = ("logits",)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch."""
        return state.add(jax.nn.softmax(output.logits).max(-1))
