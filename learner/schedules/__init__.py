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
    from learner.schedules.base import Resolved as Resolved
    from learner.schedules.base import RunLength as RunLength
    from learner.schedules.base import Schedule as Schedule
    from learner.schedules.combined import Mean as Mean
    from learner.schedules.combined import Product as Product
    from learner.schedules.combined import Sequence as Sequence
    from learner.schedules.combined import Sum as Sum
    from learner.schedules.cycles import CosineRestarts as CosineRestarts
    from learner.schedules.cycles import OneCycle as OneCycle
    from learner.schedules.cycles import WarmupCosine as WarmupCosine
    from learner.schedules.cycles import WarmupStableDecay as WarmupStableDecay
    from learner.schedules.decays import Constant as Constant
    from learner.schedules.decays import Cosine as Cosine
    from learner.schedules.decays import Exponential as Exponential
    from learner.schedules.decays import InverseSqrt as InverseSqrt
    from learner.schedules.decays import Linear as Linear
    from learner.schedules.decays import Noam as Noam
    from learner.schedules.decays import Polynomial as Polynomial
    from learner.schedules.plateau import ReduceOnPlateau as ReduceOnPlateau
    from learner.schedules.stairs import MultiStep as MultiStep
    from learner.schedules.stairs import Step as Step

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
