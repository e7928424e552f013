"""Handwritten digits with a convolutional network: batch normalisation, dropout, clipped gradients, a learning rate
with warmup and decay, early stopping, and a checkpointer that monitors the accuracy.

    python -m examples.digits_cnn
"""

import optax
from flax import nnx

from learner import LearnerBuilder, LearningResult, MetricEarlyStopping
from learner.data import DataLoaderBuilder, digits
from learner.examples.models import CNN
from learner.metrics import Accuracy, LearningRate, TopKAccuracy


def optimizer(lr: float) -> optax.GradientTransformation:
    """Return the optimizer for a learning rate; in training `lr` is a traced number."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lr, weight_decay=1e-4))


def main(directory: str = "runs/digits_cnn", num_epochs: int = 10) -> LearningResult:
    """Train to a validation accuracy of about 99 %."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(120).build(digits("valid"))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 5e-3, warmup_steps=45, decay_steps=450)
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy(), TopKAccuracy(3))
        .metric_train(LearningRate())
        .num_epochs(num_epochs)
        .early_stopping(MetricEarlyStopping("valid/Loss", patience=4))
        .with_file_checkpointer(keep_last=2, keep_best=1, monitor="valid/Accuracy")
        .summary()
        .build(CNN([16, 32], dropout=0.25, rngs=nnx.Rngs(0)), optimizer, schedule)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
