"""Six digit classifiers at once: two learning rates, three seeds each, in one compiled program.

Prints the best validation accuracy of each member, and its mean with a 95 % interval over the seeds.

python -m examples.population
"""

import optax
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, PopulationResult
from learner.data import digits
from learner.examples.models import MLP, Batch
from learner.metrics import Accuracy


def make_model(rngs: nnx.Rngs) -> MLP:
    """Return the model of a member, with the random streams of its seed."""
    return MLP([64, 64, 10], dropout=0.1, rngs=rngs)


def step(model: nnx.Module, batch: Batch) -> ClassificationOutput:
    """Return the output of one member; it does not depend on the others."""
    return ClassificationOutput.from_logits(model(batch["image"]), batch["label"])


def main(directory: str = "runs/population", num_epochs: int = 10) -> PopulationResult:
    """Train the members, and print their table and the statistics over seeds."""
    builder = LearnerBuilder(directory, overwrite=True).metrics(Accuracy()).with_batch_size(32).num_epochs(num_epochs)
    builder.population(lr=[3e-4, 3e-3], seed=[0, 1, 2])
    learner = builder.build(make_model, optax.adamw, train_step=step, valid_step=step)
    result = learner.fit(digits("train"), digits("valid"))
    assert isinstance(result, PopulationResult)
    print(result.table("valid/Accuracy"))
    print(result.summary("valid/Accuracy", over="seed"))
    return result


if __name__ == "__main__":
    main()
