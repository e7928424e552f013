"""One of several training processes: `python trained.py COORDINATOR COUNT INDEX DIRECTORY KIND OPTIONS`.

Writes the run's results to `DIRECTORY/left-INDEX.npz`, and prints how it ended. `train` with a count of 0 runs in the
caller's process, on one device.
"""

import json
import os
import signal
import sys


def killed_in(module, name, number):
    """Let the process kill itself before the call of this number of a function that a save calls."""
    called, calls = getattr(module, name), []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return called(*arguments)

    setattr(module, name, call)


def train(coordinator, count, index, directory, kind, given):
    from learner import init_distributed

    os.environ.update(given.pop("environments", [{}] * 9)[index])
    if disks := given.pop("disks", None):
        os.chdir(disks[index])

    if count:
        init_distributed(
            coordinator, count, index, heartbeat=given.pop("heartbeat", 100.0), timeout=given.pop("timeout", 300.0)
        )
    at = given.get("at") or {}
    if at.get("process") == index and at["what"] == "raise early":
        raise ValueError("there is no such data on this machine")
    if at.get("process") == index and at["what"] == "exit early":
        sys.exit(0)

    import jax
    import numpy as np
    import optax
    from flax import nnx
    from jax.experimental import multihost_utils

    from learner import (
        GradientHistograms,
        LearnerBuilder,
        LearnerError,
        ReduceOnPlateau,
        Updates,
        load_checkpoint,
        parameter_histograms,
    )
    from learner.checkpoint import places
    from learner.checkpoint.store import CheckpointStore
    from learner.data import DataLoaderBuilder, PerProcess
    from learner.distributed.departure import leave
    from learner.loggers import JsonLines, MetricLogger
    from learner.metrics import Accuracy, GradientNorm, HostMetric, LearningRate, MeanMetric, Perplexity
    from learner.strategies import Sharded, fsdp
    from learner.training.stopping import MetricEarlyStopping
    from tests.support import spread

    class Camera(HostMetric):
        name = "Camera"

        def __init__(self, fails):
            self.updates, self._fails = 0, fails

        def update(self, steps, seconds):
            self.updates += 1
            if self._fails and self.updates > 2:
                raise ValueError("this machine has no camera")
            return 1.0

        def compute(self):
            return 1.0

        def reset(self):
            pass

    class Temperature(HostMetric):
        name, higher_is_better = "Temperature", False

        def __init__(self, temperatures):
            self._temperatures, self._next = temperatures, 0

        def update(self, steps, seconds):
            return self._temperatures[self._next]

        def compute(self):
            return self._temperatures[self._next]

        def reset(self):
            self._next += 1

    class Scaled(MeanMetric):
        name, higher_is_better, fields = "Scaled", False, ("logits",)

        def __init__(self, factor):
            self._factor = lambda: factor  # no setting that could be read

        def update(self, state, output, info):
            return state.add(self._factor() * output.logits.mean(-1))

    class Shuffled:
        """Batches in an order of each epoch, with a position."""

        def __init__(self, batches):
            self.batches, self.epoch, self.read = batches, 0, 0

        def __iter__(self):
            order = np.random.default_rng(self.epoch).permutation(len(self.batches))
            while self.read < len(order):
                self.read += 1
                yield self.batches[order[self.read - 1]]
            self.epoch, self.read = self.epoch + 1, 0

        def state_dict(self):
            return {"epoch": self.epoch, "read": self.read}

        def load_state_dict(self, state):
            self.epoch, self.read = state["epoch"], state["read"]

    class Last(MetricLogger):
        def log(self, split, name, value, epoch, step):
            pass

        def close(self):
            if at.get("process") == index and at.get("step") == "close":
                os.kill(os.getpid(), getattr(signal, at["what"]))

    options = {"accumulate": 1, "epochs": 2, "batch": 24, "rows": 125, "rules": None, "lr": 0.2, **given}
    case = spread.KINDS[kind]
    if at.get("process") == index and at["what"] == "manifest":
        killed_in(places, "write_manifest", at["number"])

    def update(info, model):
        if info.step == options.get("update_step", 4) and (given := options["updates"][index]):
            changed = {}
            if "model" in given:
                model.out.bias[...] += given["model"]
                changed = {"model": model}
            return Updates(**{**given, **changed})
        return None

    def hook(info, model):
        if at.get("process") != index or at.get("step") != info.step:
            return
        if at["what"] == "raise":
            raise ValueError("the hook of this process does not work")
        if at["what"] == "exit":
            sys.exit(3)
        if at["what"] == "interrupt":
            raise KeyboardInterrupt
        os.kill(os.getpid(), getattr(signal, at["what"]))

    builder = LearnerBuilder(directory).metrics(Accuracy(), spread.Order()).metric_train(GradientNorm()).renderer(None)
    if "stale" in options:
        builder.restore_best()
        if options["stale"] == index:  # as a directory of another machine that lacks the newest files
            CheckpointStore._damage = lambda store, step: f"{step} is stale" if step == max(store.steps) else ""
    if "steps" in options:
        builder.num_steps(options["steps"])
    else:
        builder.num_epochs(options["epochs"])
    builder.grads_accumulation(options["accumulate"]).every(1, hook)
    builder.metric_loggers(JsonLines(every_steps=1), Last()).seed(options.get("seeds", [0] * 9)[index])
    if (save := options.get("save", {})) is None:
        builder.with_file_checkpointer(None)
    else:
        builder.with_file_checkpointer(**{"keep_last": 9, "keep_best": 0, **save})
    if options["rules"] == "fsdp":
        builder.strategy(Sharded(rules=fsdp(1)))
    elif options["rules"] == "tensor":
        builder.strategy(Sharded({"data": 1, "model": count}, {r".*kernel": (None, "model")}))
    elif count:
        builder.strategy(Sharded())
    if options.get("resume"):
        builder.resume()
    if options.get("perplexity") == index:
        builder.metrics(Perplexity())
    if "factors" in options:
        builder.metrics(Scaled(options["factors"][index]))
    if "early" in options:
        builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=options["early"], min_delta=9.0))
    if "updates" in options:
        builder.every(1, update)
    if scores := options.get("scores"):
        builder.on_epoch_end(lambda info, model: {"Score": scores[index][info.epoch - 1]})
        builder.early_stopping(MetricEarlyStopping("custom/Score", "min", patience=2))
    lr = options["lr"]
    if temperatures := options.get("temperatures"):
        builder.metric_train(Temperature(temperatures[index])).metric_train(LearningRate())
        builder.early_stopping(MetricEarlyStopping("train/Temperature", patience=2))
        lr = ReduceOnPlateau(lr, "train/Temperature", factor=0.5, patience=0)
    if options.get("histograms"):
        builder.on_epoch_end(parameter_histograms).on_epoch_end(GradientHistograms(case.data(16, 3)))
    if "initial" in options:
        builder.initial_from(options["initial"][index])
    if options.get("profile"):
        builder.profile(tuple(options["profile"]))
    if options.get("limits"):
        builder.with_time_limit(options["limits"][index])
    if "nonfinite" in options:
        builder.on_nonfinite(options["nonfinite"])
    beta = options.get("betas", [0.9] * 9)[index]  # a function whose settings cannot be read
    if "bad_metric" in options:
        builder.metrics(Camera(fails=index == options["bad_metric"]))
    dropout = options.get("dropouts", [0.0] * 9)[index]

    def make():
        model = case.make(dropout)
        if shift := options.get("shifts", [0.0] * 9)[index]:
            model.out.bias[...] += shift
        return model

    if pattern := options.get("freeze"):
        builder.freeze(pattern)
    model = make() if options.get("object") else make
    learner = builder.build(model, lambda lr: optax.adam(lr, b1=beta), lr)
    arrays = case.data(options["rows"], options.get("data_seeds", [1] * 9)[index])
    if "bad" in options:
        arrays["x"][options["bad"]] = np.nan
    size = options.get("batches", [options["batch"]] * 9)[index]
    data = DataLoaderBuilder().batch_size(size).shuffle(3).build(arrays)
    if "lengths" in options:
        batches = [jax.tree.map(lambda x, i=i: x[i * 24 : (i + 1) * 24], arrays) for i in range(5)]
        length = options["lengths"][index]
        data = lambda: iter(batches[:length])  # noqa: E731
    valid = DataLoaderBuilder().batch_size(options["batch"]).build(case.data(37, 2))
    if options.get("own"):
        rows = options["batch"] // max(count, 1)
        batches = [jax.tree.map(lambda x, i=i: x[i * 24 : (i + 1) * 24], arrays) for i in range(5)]
        data = [jax.tree.map(lambda x: x[index * rows : (index + 1) * rows], batch) for batch in batches]
        last = options.get("last_rows", [rows] * 9)[index]
        data[-1] = jax.tree.map(lambda x: x[:last], data[-1])
        data = PerProcess(Shuffled(data) if options["own"] == "shuffled" else data)
    try:
        if options.get("evaluate"):
            print(json.dumps(learner.evaluate(data)), flush=True)
            return
        if options.get("predict"):
            logits = [np.asarray(output.logits) for output in learner.predict(data)]
            os.makedirs(directory, exist_ok=True)
            np.savez(f"{directory}/left-{index}.npz", logits=np.concatenate(logits))
            print(json.dumps({"batches": len(logits)}), flush=True)
            return
        result = learner.fit(data, valid)
    except LearnerError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        leave(str(error))  # otherwise process 0 could exit before the others have received the error
        sys.exit(2)
    alone = {}
    if options.get("reads") == index:  # while the other process waits to exchange arrays
        loaded = load_checkpoint(directory, "latest", make())
        weights = loaded.model.out.kernel[...] @ np.ones(4, np.float32)
        alone = {"best": [result.best_epoch, result.best_step], "loaded": loaded.step, "weights": weights.tolist()}
    leaves = nnx.state(result.model, nnx.Any(nnx.Param, nnx.BatchStat))
    if count:
        leaves = multihost_utils.process_allgather(leaves, tiled=True)
    history = {f"history {key}": np.asarray(values) for key, values in result.history.items()}
    np.savez(f"{directory}/left-{index}.npz", **spread.leaves_of(leaves), **history)
    print(json.dumps({"stopped_by": result.stopped_by, "steps": result.summary["steps"], **alone}), flush=True)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], json.loads(sys.argv[6]))
