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

import importlib
import sys

if sys.platform == "win32":
    # There `os.kill(pid, 0)`, which asks elsewhere whether a process lives, sends it Ctrl-C.
    raise ImportError("learner does not run on Windows: use WSL, the Windows Subsystem for Linux")

# Not from `typing`: `python -m learner` imports this with the current directory first on the import path.
TYPE_CHECKING = False

__version__: str

if TYPE_CHECKING:  # a name is imported when it is asked for: the commands that only read files do without JAX
    from learner.builder import LearnerBuilder
    from learner.checkpoint.checkpointer import Checkpointer
    from learner.checkpoint.load import (
        LoadedCheckpoint,
        SchedulerRecord,
        load_checkpoint,
        load_optimizer,
        load_scheduler,
    )
    from learner.config.base import Config
    from learner.config.distributions import loguniform, uniform
    from learner.diagnostics.check_result import Answer, CheckResult
    from learner.diagnostics.optuna_trials import optuna_objective
    from learner.diagnostics.rate_range import RangeTest
    from learner.distributed.connection import init_distributed
    from learner.errors import LearnerError, NonFiniteError, OutOfMemoryError
    from learner.learner import Learner
    from learner.models.linen import Linen
    from learner.models.params import eval_mode, partition_params, train_mode, trainable_params, with_parameters
    from learner.records import load_model, save_model
    from learner.runs.history import History
    from learner.schedules import ReduceOnPlateau
    from learner.steps.gradients import GradientsAccumulator, value_and_grad
    from learner.steps.outputs import (
        ClassificationOutput,
        GeneratedOutput,
        MultiLabelOutput,
        Output,
        RegressionOutput,
        SegmentationOutput,
        SequenceOutput,
        TrainOutput,
        weighted_mean,
    )
    from learner.steps.precision import LossScale, Policy
    from learner.steps.protocols import TrainStep, ValidStep
    from learner.steps.train_state import TrainState
    from learner.steps.update import Optimizer
    from learner.training.gradient_histograms import GradientHistograms
    from learner.training.hooks import EpochInfo, Updates, parameter_histograms
    from learner.training.population_result import PopulationResult
    from learner.training.result import LearningResult
    from learner.training.run_writer import RunWriter
    from learner.training.stopping import Interrupter, MetricEarlyStopping
    from learner.util.samples import Histogram, Image
    from learner.util.user_warnings import LearnerWarning

__all__ = [
    "Answer",
    "CheckResult",
    "Checkpointer",
    "ClassificationOutput",
    "Config",
    "EpochInfo",
    "GeneratedOutput",
    "GradientHistograms",
    "GradientsAccumulator",
    "Histogram",
    "History",
    "Image",
    "Interrupter",
    "Learner",
    "LearnerBuilder",
    "LearnerError",
    "LearnerWarning",
    "LearningResult",
    "Linen",
    "LoadedCheckpoint",
    "LossScale",
    "MetricEarlyStopping",
    "MultiLabelOutput",
    "NonFiniteError",
    "Optimizer",
    "OutOfMemoryError",
    "Output",
    "Policy",
    "PopulationResult",
    "RangeTest",
    "ReduceOnPlateau",
    "RegressionOutput",
    "RunWriter",
    "SchedulerRecord",
    "SegmentationOutput",
    "SequenceOutput",
    "TrainOutput",
    "TrainState",
    "TrainStep",
    "Updates",
    "ValidStep",
    "eval_mode",
    "init_distributed",
    "load_checkpoint",
    "load_model",
    "load_optimizer",
    "load_scheduler",
    "loguniform",
    "optuna_objective",
    "parameter_histograms",
    "partition_params",
    "save_model",
    "train_mode",
    "trainable_params",
    "uniform",
    "value_and_grad",
    "weighted_mean",
    "with_parameters",
]

_MODULES = {
    "Answer": "learner.diagnostics.check_result",
    "CheckResult": "learner.diagnostics.check_result",
    "Checkpointer": "learner.checkpoint.checkpointer",
    "ClassificationOutput": "learner.steps.outputs",
    "Config": "learner.config.base",
    "EpochInfo": "learner.training.hooks",
    "GeneratedOutput": "learner.steps.outputs",
    "GradientHistograms": "learner.training.gradient_histograms",
    "GradientsAccumulator": "learner.steps.gradients",
    "Histogram": "learner.util.samples",
    "History": "learner.runs.history",
    "Image": "learner.util.samples",
    "Interrupter": "learner.training.stopping",
    "Learner": "learner.learner",
    "LearnerBuilder": "learner.builder",
    "LearnerError": "learner.errors",
    "LearnerWarning": "learner.util.user_warnings",
    "LearningResult": "learner.training.result",
    "Linen": "learner.models.linen",
    "LoadedCheckpoint": "learner.checkpoint.load",
    "LossScale": "learner.steps.precision",
    "MetricEarlyStopping": "learner.training.stopping",
    "MultiLabelOutput": "learner.steps.outputs",
    "NonFiniteError": "learner.errors",
    "Optimizer": "learner.steps.update",
    "OutOfMemoryError": "learner.errors",
    "Output": "learner.steps.outputs",
    "Policy": "learner.steps.precision",
    "PopulationResult": "learner.training.population_result",
    "RangeTest": "learner.diagnostics.rate_range",
    "ReduceOnPlateau": "learner.schedules",
    "RegressionOutput": "learner.steps.outputs",
    "RunWriter": "learner.training.run_writer",
    "SchedulerRecord": "learner.checkpoint.load",
    "SegmentationOutput": "learner.steps.outputs",
    "SequenceOutput": "learner.steps.outputs",
    "TrainOutput": "learner.steps.outputs",
    "TrainState": "learner.steps.train_state",
    "TrainStep": "learner.steps.protocols",
    "Updates": "learner.training.hooks",
    "ValidStep": "learner.steps.protocols",
    "eval_mode": "learner.models.params",
    "init_distributed": "learner.distributed.connection",
    "load_checkpoint": "learner.checkpoint.load",
    "load_model": "learner.records",
    "load_optimizer": "learner.checkpoint.load",
    "load_scheduler": "learner.checkpoint.load",
    "loguniform": "learner.config.distributions",
    "optuna_objective": "learner.diagnostics.optuna_trials",
    "parameter_histograms": "learner.training.hooks",
    "partition_params": "learner.models.params",
    "save_model": "learner.records",
    "train_mode": "learner.models.params",
    "trainable_params": "learner.models.params",
    "uniform": "learner.config.distributions",
    "value_and_grad": "learner.steps.gradients",
    "weighted_mean": "learner.steps.outputs",
    "with_parameters": "learner.models.params",
}

_PACKAGES = [
    f"learner.{name}"
    for name in ("data", "loggers", "metrics", "optimizers", "records", "renderers", "runs", "schedules", "strategies")
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name, or a module of the package, at its first use."""
        if name in _MODULES:
            value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
            return value
        if name == "__version__":
            return importlib.import_module("learner.util.distribution").VERSION
        module = f"{__name__}.{name}"
        if not name.startswith("_"):
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
        discovery = importlib.import_module("learner.util.discovery")
        others = {} if name.startswith("_") else discovery.names_in_packages(*_PACKAGES)
        raise discovery.missing_attribute(__name__, name, {**others, **{each: each for each in _MODULES}})

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
