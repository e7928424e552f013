"""Optimizers made of optimizers: groups of parameters, clipping, averages.

An optimizer is a function of the learning rate, such as `optax.adamw`, and so is each of these, so that they nest:

    Ema(Clipped(Groups(optax.adamw, [Group("^head", lr=10.0)]), norm=1.0), decay=0.999)
"""

from learner.optimizers.averages import Ema, Swa
from learner.optimizers.base import RateFunction
from learner.optimizers.gradients import Clipped, Noisy, kernels
from learner.optimizers.groups import Group, Groups

__all__ = ["Clipped", "Ema", "Group", "Groups", "Noisy", "RateFunction", "Swa", "kernels"]
