"""Handwritten digits with a small MLP, as in `learner fit configs/digits.yaml` and with the same bits.

python -m examples.digits
"""

from functools import partial

import optax
from flax import nnx

from learner import LearnerBuilder, LearningResult
from learner.data import DataLoaderBuilder, digits
from learner.examples.models import MLP
from learner.metrics import Accuracy
from learner.schedules import Cosine


def main(directory: str = "runs/digits", num_epochs: int = 20) -> LearningResult:
    """Train to a validation accuracy above 97 %."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(360).build(digits("valid"))
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy())
        .num_epochs(num_epochs)
        .with_file_checkpointer(keep_last=2, keep_best=1)
        .summary()
        .build(
            MLP([64, 256, 256, 10], dropout=0.3, rngs=nnx.Rngs(0)),
            partial(optax.adamw, weight_decay=1e-2),
            Cosine(first=2e-3),
        )
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
