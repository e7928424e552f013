"""Strategies: the placement of programs on devices. `learner.steps` has the programs; a strategy places arrays and
compiles.
"""

from learner.strategies.base import Strategy
from learner.strategies.choose import choose_devices
from learner.strategies.replicated import Replicated
from learner.strategies.rules import fsdp
from learner.strategies.sharded import Sharded
from learner.strategies.single import SingleDevice

__all__ = ["Replicated", "Sharded", "SingleDevice", "Strategy", "choose_devices", "fsdp"]
