"""Fine-tuning: a trained backbone under another name gets a new head, which is trained first alone, then with the whole
model.

1. Pretraining distinguishes the digits 0 to 4 and writes a model file.
2. The parameters of its `encoder` become those of the `backbone` of another model, which is frozen while the new head
for all ten digits is trained. Frozen parameters have neither gradients nor optimizer state.
3. The whole model is trained at a lower rate.

    python -m examples.finetune
"""

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, LearningResult, load_model, save_model
from learner.data import DataLoaderBuilder, digits
from learner.examples.models import MLP
from learner.metrics import Accuracy


def step(model: Any, batch: Any) -> ClassificationOutput:
    """Return the output of both models."""
    return ClassificationOutput.from_logits(model(batch["image"]), batch["label"])


class Pretrained(nnx.Module):
    """An `encoder`, and a head that distinguishes five digits."""

    def __init__(self, rngs: nnx.Rngs):
        self.encoder = MLP([64, 128, 64], rngs=rngs)
        self.classifier = nnx.Linear(64, 5, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `[batch, 8, 8]` to logits `[batch, 5]`."""
        return self.classifier(nnx.relu(self.encoder(images)))


class FineTuned(nnx.Module):
    """The encoder as `backbone`, and a `head` for ten digits."""

    def __init__(self, rngs: nnx.Rngs):
        self.backbone = MLP([64, 128, 64], rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `[batch, 8, 8]` to logits `[batch, 10]`."""
        return self.head(nnx.relu(self.backbone(images)))


def fit(directory: str, model: Any, lr: float, num_epochs: int, most: int = 10, freeze: str = "") -> LearningResult:
    """Train on digits below `most`. Freeze parameters whose paths match `freeze`."""
    splits = []
    for split, size in (("train", 32), ("valid", 360)):
        rows = digits(split).arrays
        below = np.flatnonzero(rows["label"] < most)
        loader = DataLoaderBuilder().batch_size(size)
        loader = loader.shuffle(seed=0) if split == "train" else loader
        splits.append(loader.build({name: x[below] for name, x in rows.items()}))
    builder = LearnerBuilder(directory).metrics(Accuracy()).num_epochs(num_epochs).freeze(*[freeze] if freeze else [])
    return builder.build(model, optax.adam, lr, train_step=step, valid_step=step).fit(*splits)


def main(directory: str = "runs/finetune", num_epochs: int = 4) -> tuple[LearningResult, LearningResult]:
    """Return the results of the head alone, and of the whole model."""
    file = f"{directory}/pretrained.safetensors"
    save_model(file, fit(f"{directory}/pretrained", Pretrained(nnx.Rngs(0)), 1e-3, num_epochs, most=5).best_model)
    model = load_model(file, FineTuned(nnx.Rngs(1)), rename=[(r"^encoder\.", "backbone.")], strict=False, report=print)
    head = fit(f"{directory}/head", model, 1e-2, num_epochs, freeze=r"^backbone\.")
    return head, fit(f"{directory}/all", head.model, 5e-4, num_epochs)


if __name__ == "__main__":
    main()
