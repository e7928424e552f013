"""The classes of `learner.optimizers.configs`, under the name that earlier programs and configs import."""

from learner.optimizers.configs import OPTIMIZERS
from learner.optimizers.configs import OptimizerConfig as Optimizer

globals().update(OPTIMIZERS)
__all__ = ["OPTIMIZERS", "Optimizer", *OPTIMIZERS]
