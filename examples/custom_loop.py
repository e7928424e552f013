"""A loop written by hand, which prints every iteration, and ends with the very numbers of `Learner.fit`.

The learner's pure functions are the pieces: `init` makes a state, `train_step` and `valid_step` compute what `fit`
dispatches, and metrics, seen batch by batch, are added up with their weights.

python -m examples.custom_loop
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import optax
from flax import nnx

from examples.models import MLP
from learner import Checkpointer, Learner, LearnerBuilder, TrainState
from learner.data import DataLoader, DataLoaderBuilder, digits
from learner.metrics import Accuracy, Mean


def build(directory: str, num_epochs: int) -> Learner:
    """The learner; `fit` would train it in `directory`, and a loop by hand does not look at that."""
    model = MLP([64, 128, 10], dropout=0.2, rngs=nnx.Rngs(0))
    builder = LearnerBuilder(directory).metrics(Accuracy()).num_epochs(num_epochs)
    return builder.build(model, partial(optax.adamw, weight_decay=1e-2), optax.cosine_decay_schedule(2e-3, 450))


def loaders() -> tuple[DataLoader, DataLoader]:
    """Training and validation batches, new from the first epoch on."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    return train, DataLoaderBuilder().batch_size(360).build(digits("valid"))


def validate(learner: Learner, state: TrainState, batches: Iterable[Any]) -> dict[str, float]:
    """The weighted mean of each metric over the batches."""
    means: dict[str, Mean] = {}
    for batch in batches:
        values = learner.valid_step(state, batch)
        weight = values.pop("weight")
        means = {name: means.get(name, Mean.zero()).add(value, weight) for name, value in values.items()}
    return {name: float(mean.value()) for name, mean in means.items()}


def main(directory: str = "runs/custom_loop", num_epochs: int = 3) -> tuple[Any, dict[str, float]]:
    """Trains, or goes on where it was stopped; returns the model and the metrics of the last validation."""
    learner, (train, valid) = build(directory, num_epochs), loaders()
    state, first = learner.init(), 1
    with Checkpointer(f"{directory}/checkpoint", keep_best=1) as checkpointer:
        if checkpointer.steps:
            restored = checkpointer.restore(state)
            state, first = restored.state, restored.info["epoch"] + 1
        for epoch in range(first, num_epochs + 1):
            for iteration, batch in enumerate(train.epoch(epoch), 1):
                state, values = learner.train_step(state, batch)
                loss, accuracy = float(values["Loss"]), float(values["Accuracy"])
                print(f"epoch {epoch} iteration {iteration:2} loss {loss:.4f} accuracy {accuracy:.3f}")
            metrics = validate(learner, state, valid)
            print(f"epoch {epoch} valid loss {metrics['Loss']:.4f} accuracy {metrics['Accuracy']:.3f}")
            checkpointer.save(int(state.step), state, score=metrics["Loss"], info={"epoch": epoch})
    return learner.model_of(state), validate(learner, state, valid)


if __name__ == "__main__":
    main()
