"""Optimizers made of other optimizers: groups of parameters, clipping, averages.

An optimizer is a function of the learning rate, such as `optax.adamw`. Each of these is one, too, so they can be
nested:

    Ema(Clipped(Groups(optax.adamw, [Group("^head", lr=10.0)]), norm=1.0), decay=0.999)

Each optimizer of optax also has a class for use in a `learner.Config`: `AdamW(weight_decay=1e-4)`; see
`OptimizerConfig`.
"""

from typing import TYPE_CHECKING, Any

from learner.util.discovery import import_lazily, missing_attribute

if TYPE_CHECKING:
    from learner.optimizers.base import OptimizerFactory as OptimizerFactory
    from learner.optimizers.configs import OptimizerConfig as OptimizerConfig
    from learner.optimizers.gradient_transforms import Clipped as Clipped
    from learner.optimizers.gradient_transforms import Noisy as Noisy
    from learner.optimizers.gradient_transforms import kernels as kernels
    from learner.optimizers.groups import Group as Group
    from learner.optimizers.groups import Groups as Groups
    from learner.optimizers.weight_averages import Ema as Ema
    from learner.optimizers.weight_averages import Swa as Swa
    from learner.steps.run_key import run_key as run_key

_import, __dir__ = import_lazily(__name__)


def __getattr__(name: str) -> Any:
    """Import a name at its first use. The classes of `learner.optimizers.configs` are made at the first use of one."""
    try:
        return _import(name)
    except AttributeError:
        if name.startswith("_"):
            raise
        import learner.optimizers.configs as configs

        if name in configs.OPTIMIZERS:
            return getattr(configs, name)
        names = [*_import("__all__"), *configs.OPTIMIZERS]
        raise missing_attribute(__name__, name, {each: each for each in names}) from None
