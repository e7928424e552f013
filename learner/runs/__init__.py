"""Runs, read from what they left on disk: nothing is imported that they name, and nothing is changed.

    run = Run("runs/digits")
    run.status, run.history["valid/Loss"], run.config["lr.init_value"]
    run.steps("train/Loss", most=1000).mean

A directory may be somebody else's, and the run in it may still go on, or be damaged.
"""

from learner.runs.comparison import Comparison, compare
from learner.runs.find import each_run, find_runs
from learner.runs.run import Run, Status
from learner.runs.series import Series

__all__ = ["Comparison", "Run", "Series", "Status", "compare", "each_run", "find_runs"]
