"""The opponents: usual and optimized hand-written loops, and the limit that no loop can exceed.

All use one pure step on flat leaves, so that they compute equal numbers; they differ in the work of one call.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.workloads import RATE, Rows, Workload

Leaves = list[jax.Array]
Losses = list[tuple[float, float]]  # train and validation loss of each epoch
Feed = Callable[[int], Iterable[tuple[Any, ...]]]  # epoch -> the arguments of each step
Mark = Callable[[str], None]  # "step" after the first step, "epoch" after each awaited epoch


def order_of(rows: int, epoch: int) -> np.ndarray:
    """Return a permutation of the rows, int32 `[rows]`, a function of the epoch."""
    return np.random.default_rng((0, epoch)).permutation(rows).astype(np.int32)


class Task:
    """The pure functions of a workload on the flat leaves of (params, optimizer state).

    Args:
      workload: the workload to train.
      devices: over which each batch is spread.
      one_program: make the leaves in one compiled program instead of operation by operation.
    """

    def __init__(self, workload: Workload, devices: int = 1, one_program: bool = False):
        self.optimizer = optax.adamw(RATE)
        self.several = devices > 1

        def make() -> Any:
            params, self.apply = workload.pure()
            self.params = len(jax.tree.leaves(params))
            return params, self.optimizer.init(params)

        if one_program:  # runs once, so it is compiled quickly
            make = jax.jit(make).lower().compile({"xla_backend_optimization_level": 1})
        leaves, self.tree = jax.tree.flatten(make())
        # AdamW's two moments share one buffer of zeros at first; a buffer can be donated only once.
        self.leaves: Leaves = leaves if one_program else [jnp.array(leaf, copy=True) for leaf in leaves]
        if self.several:
            mesh = jax.make_mesh((devices,), ("rows",), (AxisType.Auto,))
            self.rows = NamedSharding(mesh, PartitionSpec("rows"))
            self.leaves = jax.device_put(self.leaves, NamedSharding(mesh, PartitionSpec()))

    def forward(self, params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the mean loss, and the sums `[loss, correct, labels]`."""
        if self.several:
            x, y = lax.with_sharding_constraint((x, y), self.rows)
        logits = self.apply(params, x)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        correct = (logits.argmax(-1) == y).sum().astype(jnp.float32)
        return loss, jnp.stack([loss * y.size, correct, jnp.float32(y.size)])

    def train(self, leaves: Leaves, sums: jax.Array, x: jax.Array, y: jax.Array) -> tuple[Leaves, jax.Array]:
        """Perform one optimizer step."""
        params, opt_state = self.tree.unflatten(leaves)
        (_, more), grads = jax.value_and_grad(self.forward, has_aux=True)(params, x, y)
        updates, opt_state = self.optimizer.update(grads, opt_state, params)
        return jax.tree.leaves((optax.apply_updates(params, updates), opt_state)), sums + more

    def valid(self, params: Leaves, sums: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        """Evaluate one batch of validation; `params` are the first leaves."""
        nothing = [None] * (self.tree.num_leaves - self.params)
        return sums + self.forward(self.tree.unflatten([*params, *nothing])[0], x, y)[1]


def batches(rows: Rows, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Yield all batches in order, the last one possibly smaller, as slices without copies."""
    return [(rows["x"][i : i + size], rows["y"][i : i + size]) for i in range(0, len(rows["y"]), size)]


class Shuffled:
    """A plain Python iterable of NumPy batches, in a different order in each epoch."""

    def __init__(self, rows: Rows, size: int):
        self.rows, self.size, self.epoch = rows, size, 0

    def __iter__(self) -> Iterator[Rows]:
        order = order_of(len(self.rows["y"]), self.epoch)
        self.epoch += 1
        for i in range(0, len(order), self.size):
            yield {k: v[order[i : i + self.size]] for k, v in self.rows.items()}


class Batches:
    """A plain Python iterable of NumPy batches, in the order of the rows."""

    def __init__(self, rows: Rows, size: int):
        self.rows, self.size = rows, size

    def __iter__(self) -> Iterator[Rows]:
        return ({"x": x, "y": y} for x, y in batches(self.rows, self.size))


def feed_gather(task: Task, rows: Rows, size: int) -> tuple[Callable[..., Any], Feed]:
    """Keep the rows on the device. A step gets row numbers from NumPy, and gathers within the program."""
    data = jax.device_put((rows["x"], rows["y"]))

    def step(leaves: Leaves, sums: jax.Array, x: jax.Array, y: jax.Array, index: jax.Array) -> tuple[Leaves, jax.Array]:
        return task.train(leaves, sums, x[index], y[index])

    def feed(epoch: int) -> Iterable[tuple[Any, ...]]:
        order = order_of(len(rows["y"]), epoch)
        return ((*data, order[i : i + size]) for i in range(0, len(order), size))

    return step, feed


def feed_slice(task: Task, rows: Rows, size: int) -> tuple[Callable[..., Any], Feed]:
    """Keep the rows on the device. One call shuffles them for the epoch, and a step slices its batch."""
    data, count = jax.device_put((rows["x"], rows["y"])), len(rows["y"])
    shuffle = jax.jit(lambda x, y, order: (x[order], y[order]))
    starts = jax.device_put([np.int32(i) for i in range(0, count - count % size, size)])  # placed once, for all epochs

    def step(leaves: Leaves, sums: jax.Array, x: jax.Array, y: jax.Array, start: Any) -> tuple[Leaves, jax.Array]:
        if start is None:  # the last batch of the epoch is a second compilation
            return task.train(leaves, sums, x[-(count % size) :], y[-(count % size) :])
        return task.train(leaves, sums, *(lax.dynamic_slice_in_dim(v, start, size) for v in (x, y)))

    def feed(epoch: int) -> Iterable[tuple[Any, ...]]:
        shuffled = shuffle(*data, order_of(count, epoch))
        return ((*shuffled, start) for start in ([*starts, None] if count % size else starts))

    return step, feed


def feed_numpy(task: Task, rows: Rows, size: int) -> tuple[Callable[..., Any], Feed]:
    """Keep the rows in NumPy, which shuffles them once per epoch; a step gets slices."""

    def feed(epoch: int) -> Iterable[tuple[Any, ...]]:
        order = order_of(len(rows["y"]), epoch)
        return batches({k: v[order] for k, v in rows.items()}, size)

    return task.train, feed


def feed_iterable(task: Task, rows: Rows, size: int) -> tuple[Callable[..., Any], Feed]:
    """Pass the batches of a plain Python iterable of NumPy arrays to the step."""
    loader = Shuffled(rows, size)
    return task.train, lambda _: ((batch["x"], batch["y"]) for batch in loader)


FEEDS = {"gather": feed_gather, "slice": feed_slice, "numpy": feed_numpy, "iterable": feed_iterable}


def plain(workload: Workload, epochs: int, mark: Mark, devices: int = 1) -> Losses:
    """Train as most people do: the model made operation by operation, one jitted call per step on NumPy's batches, and
    the loss printed regularly.
    """
    (train_rows, valid_rows), task, losses = workload.data(), Task(workload, devices), []
    train, valid, leaves = jax.jit(task.train), jax.jit(task.valid), task.leaves
    for epoch in range(epochs):
        train_sums, valid_sums = jnp.zeros(3), jnp.zeros(3)
        order = order_of(len(train_rows["y"]), epoch)
        shuffled = {k: v[order] for k, v in train_rows.items()}
        for step, batch in enumerate(batches(shuffled, workload.batch)):
            leaves, train_sums = train(
                leaves, train_sums, *(jax.device_put(batch, task.rows) if devices > 1 else batch)
            )
            if step % 10 == 0 or devices > 1:  # on simulated devices two steps in flight deadlock
                float(train_sums[0])
                mark("step")
        for batch in batches(valid_rows, workload.valid_batch):
            valid_sums = jax.block_until_ready(valid(leaves[: task.params], valid_sums, *batch))
        losses.append(means(jax.device_get((train_sums, valid_sums))))
        mark("epoch")
    return losses


def tuned(workload: Workload, epochs: int, mark: Mark, devices: int = 1) -> Losses:
    """Train as fast as possible: the model made in one program, and all steps of an epoch in one call if loops are fast
    (see `Workload.limit`).
    """
    task = Task(workload, devices, one_program=True)
    if workload.limit:
        return limit(workload, epochs, lambda _: True, mark, task)
    return hand(workload, "slice", epochs, mark, task)


def hand(workload: Workload, feed: str, epochs: int, mark: Mark, task: Task | None = None) -> Losses:
    """Train with one call per step and per validation batch, sums on the device, and one wait per epoch."""
    train_rows, valid_rows = workload.data()
    task = task or Task(workload)
    step, feeder = FEEDS[feed](task, train_rows, workload.batch)
    train, valid = jax.jit(step, donate_argnums=0), jax.jit(task.valid)
    valid_batches = jax.device_put(batches(valid_rows, workload.valid_batch))
    leaves, zeros, losses = task.leaves, jax.device_put(np.zeros(3, np.float32)), []
    for epoch in range(epochs):
        train_sums, valid_sums, steps = zeros, zeros, iter(feeder(epoch))
        if epoch == 0:
            leaves, train_sums = train(leaves, train_sums, *next(steps))
            train_sums.block_until_ready()
            mark("step")
        for arguments in steps:
            leaves, train_sums = train(leaves, train_sums, *arguments)
            if task.several:  # two steps in flight on simulated devices deadlock
                train_sums.block_until_ready()
        params = leaves[: task.params]
        for x, y in valid_batches:
            valid_sums = valid(params, valid_sums, x, y)
            if task.several:
                valid_sums.block_until_ready()
        losses.append(means(jax.device_get((train_sums, valid_sums))))
        mark("epoch")
    return losses


def limit(workload: Workload, epochs: int, wait: Callable[[int], bool], mark: Mark, task: Task | None = None) -> Losses:
    """Train with one `scan` per epoch for training and one for validation; wait only after the epochs in `wait`."""
    (train_rows, valid_rows), task = workload.data(), task or Task(workload)
    zeros = jnp.zeros(3)

    def train(leaves: Leaves, data: tuple[jax.Array, ...], order: jax.Array) -> tuple[Leaves, jax.Array]:
        shuffled = tuple(v[order] for v in data)  # at once: gathering row by row in the loop is slower above some MB
        return _over(lambda carry, *batch: task.train(*carry, *batch), (leaves, zeros), shuffled, workload.batch)

    def valid(params: Leaves, data: tuple[jax.Array, ...]) -> jax.Array:
        return _over(lambda sums, *batch: task.valid(params, sums, *batch), zeros, data, workload.valid_batch)

    train_jit, valid_jit = jax.jit(train, donate_argnums=0), jax.jit(valid)
    train_data, valid_data = (jax.device_put((rows["x"], rows["y"])) for rows in (train_rows, valid_rows))
    leaves, sums = task.leaves, []
    for epoch in range(epochs):
        leaves, train_sums = train_jit(leaves, train_data, order_of(len(train_rows["y"]), epoch))
        if epoch == 0 and wait(epoch):
            train_sums.block_until_ready()
            mark("step")
        sums.append((train_sums, valid_jit(leaves[: task.params], valid_data)))
        if wait(epoch):
            jax.block_until_ready(sums[-1])
            mark("epoch")
    return [means(s) for s in jax.device_get(sums)]


def _over(f: Callable[..., Any], carry: Any, data: tuple[jax.Array, ...], size: int) -> Any:
    """Compute `carry = f(carry, *batch)` over all batches of `data`: a scan over full ones, then the smaller one."""
    full = len(data[0]) // size
    stacked = tuple(v[: full * size].reshape(full, size, *v.shape[1:]) for v in data)
    carry, _ = lax.scan(lambda c, batch: (f(c, *batch), None), carry, stacked)
    return carry if full * size == len(data[0]) else f(carry, *(v[full * size :] for v in data))


def means(sums: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Return train and validation loss from the sums of both."""
    train, valid = (float(s[0] / s[2]) for s in sums)
    return train, valid
