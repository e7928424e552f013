"""Low-rank adaptation (Hu et al. 2021): a network trained on digits learns inverted ones with 12 % more parameters.

The first run trains the whole network. The second one starts with its parameters, adds a product of two thin matrices
to each kernel, and trains only these matrices: only they have gradients and optimizer state.

    python -m examples.lora
"""

import jax
import numpy as np
import optax
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, LearningResult
from learner.data import DataLoader, DataLoaderBuilder, digits
from learner.metrics import Accuracy

RANK = 4


class Network(nnx.Module):
    """Two layers. `rank` is that of the added matrices, 0 for none."""

    def __init__(self, rngs: nnx.Rngs, rank: int = 0) -> None:
        self.hidden, self.out = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 10, rngs=rngs)
        if rank:
            self.hidden_lora = nnx.LoRA(64, rank, 256, rngs=rngs)
            self.out_lora = nnx.LoRA(256, rank, 10, rngs=rngs)
        self.rank = rank

    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `[batch, 8, 8]` to logits `[batch, 10]`."""
        x = images.reshape(len(images), 64)
        hidden = nnx.relu(self.hidden(x) + (self.hidden_lora(x) if self.rank else 0.0))
        logits: jax.Array = self.out(hidden) + (self.out_lora(hidden) if self.rank else 0.0)
        return logits

    def train_step(self, batch: dict[str, jax.Array]) -> ClassificationOutput:
        """Return the output of a batch."""
        return ClassificationOutput.from_logits(self(batch["image"]), batch["label"])

    valid_step = train_step


def inverted(split: str, **options: int) -> DataLoader:
    """Return digits that are dark on light."""
    data = digits(split).arrays
    images = data["image"].max() - data["image"]
    builder = DataLoaderBuilder().batch_size(32)
    builder = builder.shuffle(options["shuffle"]) if "shuffle" in options else builder
    return builder.build({"image": images.astype(np.float32), "label": data["label"]})


def main(directory: str = "runs/lora", num_epochs: int = 20) -> tuple[LearningResult, LearningResult]:
    """Train both, and return their results."""
    train = DataLoaderBuilder().batch_size(32).shuffle(0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(256).build(digits("valid"))
    builder = LearnerBuilder(f"{directory}/base", overwrite=True).metrics(Accuracy()).num_epochs(num_epochs)
    base = builder.build(Network(nnx.Rngs(0)), optax.adam, 1e-3).fit(train, valid)

    builder = LearnerBuilder(f"{directory}/adapted", overwrite=True).metrics(Accuracy()).num_epochs(num_epochs)
    builder = builder.initial_from(f"{directory}/base", "latest", partial=True)
    model = Network(nnx.Rngs(1), RANK)
    learner = builder.build(model, optax.adam, 2e-2, trainable=nnx.LoRAParam)
    adapted = learner.fit(inverted("train", shuffle=0), inverted("valid"))
    return base, adapted


if __name__ == "__main__":
    main()
