"""One of several processes that train on texts of several lengths: `python padded.py COORDINATOR COUNT INDEX DIRECTORY
OPTIONS`.

Prints the losses of the epochs and the parameters, or how the run ended. With a count of 1 it trains alone.
"""

import json
import sys


def main(coordinator, count, index, directory, options):
    from learner import init_distributed

    if count > 1:
        init_distributed(coordinator, count, index, timeout=60)

    import jax.numpy as jnp
    import numpy as np
    import optax

    from learner import LearnerBuilder, LearnerError
    from learner.data import DataLoaderBuilder, Pack, Pad, PerProcess
    from learner.distributed.departure import leave
    from learner.strategies import Sharded

    def function(items):
        return Pad()(items)

    def declared(items):
        return Pad()(items)

    declared.needs_all_rows = True
    batchers = {
        "pad": Pad(),
        "buckets": Pad(buckets=[4, 8, 16]),
        "pack": Pack(12),
        "length": Pad(length=16),
        "function": function,
        "declared": declared,
    }

    def step(model, batch):
        """A loss that depends on the padding: its second term counts all tokens."""
        predictions = model["e"][batch["text"]] + model["c"]
        loss = (batch["mask"] * (predictions - batch["text"] / 10.0) ** 2).sum() / batch["mask"].sum()
        return {"loss": loss + 0.5 * (predictions**2).mean(), "weight": batch["mask"].sum()}

    def data(lengths, own=False):
        texts = [{"text": np.arange(1, n + 1, dtype=np.int32)} for n in lengths]
        rows = 8 // count if own else 8
        if own:
            texts = [text for row, text in enumerate(texts) if row % 8 // rows == index]
        loader = DataLoaderBuilder(batchers[options["batcher"]]).batch_size(rows).build(texts)
        return PerProcess(loader) if own else loader

    model = {"e": jnp.linspace(0, 1, 16), "c": jnp.float32(0.5)}
    builder = LearnerBuilder(directory).renderer(None).strategy(Sharded()).num_epochs(options.get("epochs", 2))
    builder.grads_accumulation(options.get("accumulate", 1)).with_file_checkpointer(every_steps=1)
    learner = builder.build(model, optax.sgd, 0.1, train_step=step, valid_step=step)
    try:
        if options.get("evaluate"):
            print(json.dumps({"values": learner.evaluate(data(options["lengths"]))}), flush=True)
            return
        result = learner.fit(data(options["lengths"], options.get("own")), data(options["lengths"]))
    except LearnerError as error:
        print(json.dumps({"error": str(error), "code": error.code}), flush=True)
        leave(str(error))
        sys.exit(2)
    left = {"c": float(result.model["c"]), "e": np.asarray(result.model["e"]).tolist()}
    print(json.dumps({"history": {key: list(map(float, x)) for key, x in result.history.items()}, **left}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], json.loads(sys.argv[5]))
