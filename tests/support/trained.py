"""One of several processes that train: `python trained.py COORDINATOR COUNT INDEX DIRECTORY KIND OPTIONS`.

It writes what its run left to `DIRECTORY/left-INDEX.npz`, and prints how it ended. A count of 0: it is alone.
"""

import json
import os
import signal
import sys

COORDINATOR, COUNT, INDEX, DIRECTORY, KIND = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]
GIVEN = json.loads(sys.argv[6])


def main():
    from learner import connect

    if COUNT:
        connect(COORDINATOR, COUNT, INDEX, heartbeat=GIVEN.pop("heartbeat", 100.0))

    import jax
    import numpy as np
    import optax
    import spread
    from jax.experimental import multihost_utils

    from learner import LearnerBuilder, LearnerError
    from learner.data import DataLoaderBuilder, PerProcess
    from learner.distributed.process_group import leave
    from learner.loggers import JsonLines
    from learner.metrics import Accuracy, GradientNorm, Perplexity
    from learner.strategies import Sharded, fsdp
    from learner.training.stopping import Interrupter, MetricEarlyStopping

    options = {"accumulate": 1, "epochs": 2, "batch": 24, "rows": 125, "rules": None, "lr": 0.2, **GIVEN}
    case = spread.KINDS[KIND]
    interrupter = Interrupter()

    def hook(info, model):
        at = options.get("at") or {}
        if at.get("process") != INDEX or at.get("step") != info.step:
            return
        if at["what"] == "interrupt":
            interrupter.stop("enough")
        elif at["what"] == "raise":
            raise ValueError("the hook of this process does not work")
        else:
            os.kill(os.getpid(), getattr(signal, at["what"]))

    builder = LearnerBuilder(DIRECTORY).metrics(Accuracy(), spread.Order()).metric_train(GradientNorm()).renderer(None)
    builder.num_epochs(options["epochs"]).grads_accumulation(options["accumulate"]).every(1, hook)
    builder.metric_loggers(JsonLines(every_steps=1)).interrupter(interrupter).seed(options.get("seeds", [0] * 9)[INDEX])
    builder.with_file_checkpointer(**{"keep_last": 9, "keep_best": 0, **options.get("save", {})})
    if options["rules"] == "fsdp":
        builder.strategy(Sharded(rules=fsdp(1)))
    elif jax.device_count() > 1 or COUNT:
        builder.strategy(Sharded())
    if options.get("resume"):
        builder.resume()
    if options.get("perplexity") == INDEX:
        builder.metrics(Perplexity())
    if "early" in options:
        builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=options["early"], min_delta=9.0))
    if options.get("profile"):
        builder.profile(tuple(options["profile"]))
    if options.get("limits"):
        builder.with_time_limit(options["limits"][INDEX])
    if "nonfinite" in options:
        builder.on_nonfinite(options["nonfinite"])
    beta = options.get("betas", [0.9] * 9)[INDEX]  # of a function whose settings nobody can read
    learner = builder.build(lambda: case.make(0.0), lambda lr: optax.adam(lr, b1=beta), options["lr"])
    arrays = case.data(options["rows"], 1)
    if "bad" in options:
        arrays["x"][options["bad"]] = np.nan
    train = DataLoaderBuilder().batch_size(options["batch"]).shuffle(3).build(arrays)
    valid = DataLoaderBuilder().batch_size(options["batch"]).build(case.data(37, 2))
    if options.get("own"):
        rows = options["batch"] // max(COUNT, 1)
        whole = [jax.tree.map(lambda x, i=i: x[i * 24 : (i + 1) * 24], arrays) for i in range(5)]
        mine = [jax.tree.map(lambda x: x[INDEX * rows : (INDEX + 1) * rows], batch) for batch in whole]
        train = PerProcess(mine)
    try:
        result = learner.fit(train, valid)
    except LearnerError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        leave(str(error))  # or process 0 could be gone before the others have heard
        sys.exit(2)
    state = result.model
    from flax import nnx

    leaves = nnx.state(state, nnx.Any(nnx.Param, nnx.BatchStat))
    if COUNT:
        leaves = multihost_utils.process_allgather(leaves, tiled=True)
    history = {f"history {key}": np.asarray(values) for key, values in result.history.items()}
    np.savez(f"{DIRECTORY}/left-{INDEX}.npz", **spread.leaves_of(leaves), **history)
    print(json.dumps({"stopped_by": result.stopped_by, "steps": result.summary["steps"]}), flush=True)


main()
