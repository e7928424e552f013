"""Learning-rate schedules: functions of the optimizer step, counted in steps, epochs or fractions of the run.

    from learner.schedules import WarmupCosine

    lr = WarmupCosine(1e-3, warmup=0.05, unit="fraction")
    learner = LearnerBuilder("runs/digits").num_epochs(10).build(model, optax.adamw, lr)

Each is an `optax.Schedule` and can be used with optax alone. Optax's own schedules, and any other function of the step,
can be used as well, alone and as parts of these.
"""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.schedules.base import Resolved, RunLength, Schedule
    from learner.schedules.combined import Mean, Product, Sequence, Sum
    from learner.schedules.cycles import CosineRestarts, OneCycle, WarmupCosine, WarmupStableDecay
    from learner.schedules.decays import Constant, Cosine, Exponential, InverseSqrt, Linear, Noam, Polynomial
    from learner.schedules.plateau import ReduceOnPlateau
    from learner.schedules.stairs import MultiStep, Step

    __all__ = [
        "Constant",
        "Cosine",
        "CosineRestarts",
        "Exponential",
        "InverseSqrt",
        "Linear",
        "Mean",
        "MultiStep",
        "Noam",
        "OneCycle",
        "Polynomial",
        "Product",
        "ReduceOnPlateau",
        "Resolved",
        "RunLength",
        "Schedule",
        "Sequence",
        "Step",
        "Sum",
        "WarmupCosine",
        "WarmupStableDecay",
    ]

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
