"""Progression of diabetes from ten measurements of a patient; the rate decreases when the loss stops decreasing.

python -m examples.regression
"""

import optax
from flax import nnx

from learner import LearnerBuilder, LearningResult, ReduceOnPlateau
from learner.data import DataLoaderBuilder, diabetes
from learner.examples.models import Regressor
from learner.metrics import LearningRate, MeanAbsoluteError


def main(directory: str = "runs/regression", num_epochs: int = 40) -> LearningResult:
    """Train to a validation loss of about 0.55; a constant prediction has 1."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(diabetes("train"))
    valid = DataLoaderBuilder().batch_size(89).build(diabetes("valid"))
    learner = (
        LearnerBuilder(directory)
        .metrics(MeanAbsoluteError())
        .metric_train(LearningRate())
        .num_epochs(num_epochs)
        .with_file_checkpointer(keep_last=1, keep_best=1)
        .summary()
        .build(
            Regressor(10, [32, 32], dropout=0.2, rngs=nnx.Rngs(0)),
            optax.adam,
            ReduceOnPlateau(3e-3, "valid/Loss", factor=0.5, patience=5),
        )
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
