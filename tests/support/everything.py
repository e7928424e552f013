"""A run with every kind of state that an interruption could lose."""

import dataclasses
from typing import Any

import grain
import jax
import numpy as np
import optax

from learner import ClassificationOutput, MetricEarlyStopping
from learner.metrics import Accuracy, CollectingMetric, HostMetric, LearningRate
from tests.support.runs import LastRow, Net, arrays, line, line_step, noisy_step, quiet, valid_data

ROWS, SIZE, GROUP, STEPS = 21, 2, 4, 3  # 11 batches, the last one of one row, in groups of 4, 4 and 3
END = 3 * STEPS  # the step where early stopping ends the run
ARRAYS = arrays(ROWS) | {"row": np.arange(ROWS, dtype=np.int32)}


def augmented(batch, generator):
    """Add noise, and flip the sign of some rows, differently for each call."""
    signs = generator.choice(np.float32([-1, 1]), size=(*batch["x"].shape[:-1], 1))
    return {**batch, "x": batch["x"] * signs + generator.normal(size=batch["x"].shape).astype(np.float32)}


class Augmented:
    """Shuffle and augment with one generator that continues from epoch to epoch. `fault(epoch, batch)` is called before
    each batch.
    """

    def __init__(self, fault=None):
        self.generator, self.fault = np.random.default_rng(5), fault or (lambda batch: None)

    def __iter__(self):
        return AugmentedIterator(self)


class AugmentedIterator:
    def __init__(self, whole):
        self.whole, self.next = whole, 0
        self.order = whole.generator.permutation(ROWS)

    def __iter__(self):
        return self

    def __next__(self):
        rows = self.order[self.next : self.next + SIZE]
        if not len(rows):
            raise StopIteration
        self.whole.fault(self.next // SIZE + 1)
        self.next += SIZE
        return augmented({name: x[rows] for name, x in ARRAYS.items()}, self.whole.generator)

    def get_state(self):
        return {"generator": self.whole.generator.bit_generator.state, "order": self.order, "next": self.next}

    def set_state(self, state):
        self.whole.generator.bit_generator.state = state["generator"]
        self.order, self.next = state["order"], state["next"]


class Augment(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return augmented(element, rng)


def grain_data():
    """Return Grain data that is shuffled and augmented."""
    items = [{name: x[i] for name, x in ARRAYS.items()} for i in range(ROWS)]
    return grain.MapDataset.source(items).seed(3).shuffle().random_map(Augment()).batch(SIZE)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WithRows(ClassificationOutput):
    """An output that names its rows."""

    rows: Any = None


class EveryNet(Net):
    def train_step(self, batch):
        output = ClassificationOutput.from_logits(self(batch["x"]), batch["y"])
        return WithRows(**vars(output), rows=batch["row"])


class RowsSeen(CollectingMetric):
    """Record which rows were trained on, in order."""

    name = "Rows Seen"
    numeric = False
    fields = ("rows",)

    def collect(self, output):
        return output.rows

    def compute(self, rows):
        return rows

    def text(self, value):
        return " ".join(map(str, value))


class StepsSeen(HostMetric):
    """Count the steps of a split in all epochs, on the host."""

    name = "Steps Seen"
    seen = 0

    def update(self, steps, seconds):
        self.seen += steps
        return 1.0

    def compute(self):
        return float(self.seen)

    def reset(self):
        pass

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]


class EveryRun:
    """A run with dropout, running statistics, shuffling, random augmentation in the loader, groups of micro-batches
    with a short last group, a ragged last batch, validation within epochs, a schedule, metrics of all kinds, and early
    stopping in the third of four epochs.
    """

    every = STEPS

    def build(self, directory, epochs=4, **saves):
        builder = quiet(directory).num_epochs(epochs).grads_accumulation(GROUP).valid_every(steps=2)
        builder.metrics(Accuracy(), LastRow(), StepsSeen()).metric_train(LearningRate()).metric_train(RowsSeen())
        # With any random numbers, no loss improves so much on the first one: the sixth validation ends the run.
        builder.early_stopping(MetricEarlyStopping("valid/Loss", mode="max", patience=5, min_delta=9.0))
        return builder.with_file_checkpointer(**({"keep_last": 2, "keep_best": 1} | saves))

    def fit(self, builder, data=None, valid=None):
        schedule = optax.cosine_decay_schedule(2e-2, END)
        return builder.build(EveryNet(), optax.adamw, schedule).fit(data or Augmented(), valid or valid_data(10))


class LightRun(EveryRun):
    """The run with a linear model of random inputs, without dropout and running statistics: it trains four times as
    fast.
    """

    def build(self, directory, epochs=4, **saves):
        builder = quiet(directory).num_epochs(epochs).grads_accumulation(GROUP).valid_every(steps=2)
        builder.metrics(LastRow(), StepsSeen()).metric_train(LearningRate())
        builder.early_stopping(MetricEarlyStopping("valid/Loss", mode="max", patience=5, min_delta=9.0))
        return builder.with_file_checkpointer(**({"keep_last": 2, "keep_best": 1} | saves))

    def fit(self, builder):
        schedule = optax.cosine_decay_schedule(2e-2, END)
        learner = builder.build(line(), optax.adamw, schedule, train_step=noisy_step, valid_step=line_step)
        return learner.fit(Augmented(), valid_data(10))


class GrainRun(EveryRun):
    """The run with Grain's shuffling and augmentation."""

    def fit(self, builder):
        return super().fit(builder, grain_data())
