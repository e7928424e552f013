"""A hand-written loop that prints every iteration, and ends with the bits of `Learner.fit`.

It uses the learner's pure functions: `init` makes a state, `train_step` and `valid_step` compute the steps that `fit`
dispatches, and metrics, computed batch by batch, are averaged by weight. `RunWriter` writes the files of a run, which
`learner compare`, `learner report` and `learner watch` read.

    python -m examples.custom_loop
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import optax
from flax import nnx

from learner import Checkpointer, Learner, LearnerBuilder, RunWriter, TrainState
from learner.data import DataLoader, DataLoaderBuilder, digits
from learner.examples.models import MLP
from learner.metrics import Accuracy


def build(directory: str, num_epochs: int) -> Learner:
    """Return the learner; `fit` would train it in `directory`, a hand-written loop does not use it."""
    model = MLP([64, 128, 10], dropout=0.2, rngs=nnx.Rngs(0))
    builder = LearnerBuilder(directory).metrics(Accuracy()).num_epochs(num_epochs)
    return builder.build(model, partial(optax.adamw, weight_decay=1e-2), optax.cosine_decay_schedule(2e-3, 450))


def loaders() -> tuple[DataLoader, DataLoader]:
    """Return training and validation batches, from the first epoch."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    return train, DataLoaderBuilder().batch_size(360).build(digits("valid"))


def mean(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the mean of each metric over steps, by their weights."""
    columns = {name: np.array([float(values[name]) for values in steps]) for name in steps[0]}
    weights = columns.pop("weight")
    return {name: float(np.average(column, weights=weights)) for name, column in columns.items()}


def validate(learner: Learner, state: TrainState, batches: Iterable[Any]) -> dict[str, float]:
    """Return the mean of each metric over the batches."""
    return mean([learner.valid_step(state, batch) for batch in batches])


def main(directory: str = "runs/custom_loop", num_epochs: int = 3) -> tuple[Any, dict[str, float]]:
    """Train, or resume where training stopped; return the model and the metrics of the last validation."""
    learner, (train, valid) = build(directory, num_epochs), loaders()
    state, first = learner.init(), 1
    with Checkpointer(f"{directory}/checkpoint", keep_best=1) as checkpointer:
        if checkpointer.steps:
            restored = checkpointer.restore(state)
            state, first = restored.state, restored.info["epoch"] + 1
        config = {"num_epochs": num_epochs, "optimizer": "adamw"}
        with RunWriter(directory, config=config, metrics=[Accuracy()], resume_at=int(state.step)) as run:
            for epoch in range(first, num_epochs + 1):
                steps = []
                for iteration, batch in enumerate(train.epoch(epoch), 1):
                    state, values = learner.train_step(state, batch)
                    loss, accuracy = float(values["Loss"]), float(values["Accuracy"])
                    print(f"epoch {epoch} iteration {iteration:2} loss {loss:.4f} accuracy {accuracy:.3f}")
                    run.step({"Loss": loss, "Accuracy": accuracy}, weight=float(values["weight"]))
                    steps.append(values)
                metrics = validate(learner, state, valid)
                print(f"epoch {epoch} valid loss {metrics['Loss']:.4f} accuracy {metrics['Accuracy']:.3f}")
                run.end_epoch(int(state.step), {"train": mean(steps), "valid": metrics})
                checkpointer.save(int(state.step), state, score=metrics["Loss"], info={"epoch": epoch})
    return learner.model_of(state), validate(learner, state, valid)


if __name__ == "__main__":
    main()
