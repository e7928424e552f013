"""Distillation (Hinton et al., 2015): a small student learns from a large teacher's predictions for each digit.

Both are parts of one model, of which `trainable=` differentiates the student; the teacher does not change.

    python -m examples.distill
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import optax
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, LearningResult, eval_mode
from learner.data import DataLoader, DataLoaderBuilder, digits
from learner.examples.models import MLP
from learner.metrics import Accuracy

TEMPERATURE = 3.0


class Distillation(nnx.Module):
    """A teacher, and a student that learns to predict like it."""

    def __init__(self, teacher: MLP, student: MLP):
        self.teacher, self.student = teacher, student

    def train_step(self, batch: Any) -> ClassificationOutput:
        """Return half the cross-entropy of the labels, plus half that of the teacher's softened probabilities."""
        taught = jax.nn.softmax(eval_mode(self.teacher)(batch["image"]) / TEMPERATURE)  # no dropout in the teacher
        output = ClassificationOutput.from_logits(self.student(batch["image"]), batch["label"])
        soft = optax.softmax_cross_entropy(output.logits / TEMPERATURE, taught).mean() * TEMPERATURE**2
        return dataclasses.replace(output, loss=(output.loss + soft) / 2)

    def valid_step(self, batch: Any) -> ClassificationOutput:
        """Evaluate the student alone."""
        return ClassificationOutput.from_logits(self.student(batch["image"]), batch["label"])


def loaders() -> tuple[DataLoader, DataLoader]:
    """Return training and validation batches."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    return train, DataLoaderBuilder().batch_size(360).build(digits("valid"))


def main(directory: str = "runs/distill", num_epochs: int = 8) -> tuple[LearningResult, LearningResult]:
    """Return the results of the teacher, and of the student, which has a hundredth of its parameters."""
    teacher = MLP([64, 256, 256, 10], dropout=0.3, rngs=nnx.Rngs(0))
    builder = LearnerBuilder(f"{directory}/teacher").metrics(Accuracy()).num_epochs(num_epochs)
    taught = builder.build(teacher, partial(optax.adamw, weight_decay=1e-2), 2e-3).fit(*loaders())

    model = Distillation(taught.model, MLP([64, 12, 10], rngs=nnx.Rngs(1)))
    builder = LearnerBuilder(f"{directory}/student").metrics(Accuracy()).num_epochs(num_epochs)
    is_student = lambda path, array: path.startswith("student.")  # noqa: E731
    return taught, builder.build(model, optax.adam, 1e-2, trainable=is_student).fit(*loaders())


if __name__ == "__main__":
    main()
