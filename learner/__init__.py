"""learner: a functional trainer for JAX.

Bring a model, an optax optimizer and data; `LearnerBuilder` configures the rest:

    learner = (
        LearnerBuilder("runs/digits")
        .metrics(Accuracy())
        .num_epochs(10)
        .build(model, optax.adamw, 1e-3)
    )
    result = learner.fit(train, valid)
"""

from learner.builder import LearnerBuilder
from learner.errors import LearnerError, NonFiniteError, OutOfMemoryError
from learner.fit import Learner
from learner.history import History
from learner.loading import LoadedCheckpoint, load_checkpoint
from learner.result import LearningResult
from learner.run import EpochInfo
from learner.schedules import ReduceOnPlateau
from learner.steps.model import Linen
from learner.steps.outputs import (
    ClassificationOutput,
    MultiLabelOutput,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
    weighted_mean,
)
from learner.steps.state import TrainState
from learner.stopping import Interrupter, MetricEarlyStopping

__all__ = [
    "ClassificationOutput",
    "EpochInfo",
    "History",
    "Interrupter",
    "Learner",
    "LearnerBuilder",
    "LearnerError",
    "LearningResult",
    "Linen",
    "LoadedCheckpoint",
    "MetricEarlyStopping",
    "MultiLabelOutput",
    "NonFiniteError",
    "OutOfMemoryError",
    "ReduceOnPlateau",
    "RegressionOutput",
    "SequenceOutput",
    "TrainOutput",
    "TrainState",
    "load_checkpoint",
    "weighted_mean",
]
