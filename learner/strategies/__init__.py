"""Where programs run. The programs are written once in `learner.steps`; a strategy places arrays and compiles."""

from learner.strategies.base import Strategy
from learner.strategies.single import SingleDevice, choose_devices

__all__ = ["SingleDevice", "Strategy", "choose_devices"]
