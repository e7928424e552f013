"""Make one measurement on several devices, as a separate process: `python -m benchmarks.devices_child '{...}'`.

Prints one line of JSON. For a training: `seconds` (per epoch, over the epochs after the warm ones), `losses` (train and
validation loss of each epoch) and `device`. For the host's work: `host`, the median of the seconds that the loop's
thread is busy in a call that dispatches one step.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks import child, loops
from benchmarks.workloads import RATE, Rows, Workload

AXIS = "devices"
HAND = {"replicated": "pmap", "sharded": "jit"}
Placed = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement.

    Attributes:
      kind: "replicated" or "sharded".
      variant: "hand", "learner", or "host learner" and "host hand" for the host's work alone.
      feed: how batches reach the hand-written loop: "numpy", as arguments; "put", placed before.
      devices: number of devices.
      steps: steps per dispatch of `learner`; `None`: by its rule.
      calls: measured calls of the host's work.
      epochs, warm, rows: see `child.Case`. All batches divide evenly over 8 devices.
    """

    workload: str
    kind: str
    variant: str
    feed: str = "numpy"
    devices: int = 8
    steps: int | None = None
    calls: int = 200
    epochs: int | None = None
    warm: int | None = None
    rows: int | None = 1408


def measure(case: Case) -> dict[str, Any]:
    """Run one case in this process."""
    if case.variant.startswith("host"):
        host = _host_of_learner(case) if case.variant == "host learner" else _host_of_hand(case)
        return {"host": host, "device": jax.devices()[0].device_kind}
    work = child.workload_of(child.Case(case.workload, "", epochs=case.epochs, warm=case.warm, rows=case.rows))
    clock, epochs = child.Clock(), work.warm + work.epochs
    if case.variant == "hand":
        losses = hand(work, case, epochs, clock.mark)
    else:
        ours = child.Case(case.workload, "learner", checkpoints=False)
        losses = child.train_with_learner(work, ours, epochs, clock, lambda b: _on_devices(b, case))
    return {
        "seconds": (clock.epochs[-1] - clock.epochs[-1 - work.epochs]) / work.epochs,
        "losses": losses,
        "device": jax.devices()[0].device_kind,
    }


def _strategy(case: Case) -> Any:
    from learner.strategies import Replicated, Sharded

    devices = jax.devices()[: case.devices]
    return Replicated(devices) if case.kind == "replicated" else Sharded(devices=devices)


def _on_devices(builder: Any, case: Case) -> None:
    builder.strategy(_strategy(case))
    if case.steps is not None:
        builder.steps_per_dispatch(case.steps)


# -- by hand -----------------------------------------------------------------------------------------------------------


class Pmap:
    """Replicas by `jax.pmap`: every array has a leading axis of devices."""

    def __init__(self, devices: list[Any]):
        self.count = len(devices)
        self._devices = devices
        self._each = NamedSharding(jax.make_mesh((self.count,), (AXIS,), (AxisType.Auto,), devices=devices), _spec())

    def start(self, tree: Any) -> Any:
        """Return arrays replicated on all devices."""
        return jax.device_put(jax.tree.map(lambda x: np.stack([x] * self.count), tree), self._each)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return the rows of a batch as shares of the devices."""
        return array.reshape(self.count, -1, *array.shape[1:])

    def put(self, arrays: Placed) -> Placed:
        """Place a batch."""
        return tuple(jax.device_put(arrays, self._each))

    def train(self, task: loops.Task) -> Callable[..., Any]:
        """Perform a step: gradients and sums are reduced over the devices."""

        def step(leaves: Any, sums: Any, x: Any, y: Any) -> Any:
            params, opt_state = task.tree.unflatten(leaves)
            (_, more), grads = jax.value_and_grad(task.forward, has_aux=True)(params, x, y)
            grads, more = jax.lax.pmean(grads, AXIS), jax.lax.psum(more, AXIS)
            updates, opt_state = task.optimizer.update(grads, opt_state, params)
            return jax.tree.leaves((optax.apply_updates(params, updates), opt_state)), sums + more

        return jax.pmap(step, AXIS, devices=self._devices, donate_argnums=(0, 1))

    def valid(self, task: loops.Task) -> Callable[..., Any]:
        """Evaluate a batch of validation."""

        def step(params: Any, sums: Any, x: Any, y: Any) -> Any:
            return sums + jax.lax.psum(task.valid(params, jnp.zeros(3), x, y), AXIS)

        return jax.pmap(step, AXIS, devices=self._devices, donate_argnums=1)

    def number(self, sums: Any) -> np.ndarray:
        """Return the sums on the host."""
        return np.asarray(sums.addressable_data(0))[0]


class Mesh:
    """`jax.jit` over a mesh: batches are split, everything else is replicated."""

    def __init__(self, devices: list[Any]):
        self.count = len(devices)
        mesh = jax.make_mesh((self.count,), (AXIS,), (AxisType.Auto,), devices=devices)
        self._same, self._split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, _spec())

    def start(self, tree: Any) -> Any:
        """See `Pmap`."""
        return jax.device_put(tree, self._same)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """See `Pmap`."""
        return array

    def put(self, arrays: Placed) -> Placed:
        """See `Pmap`."""
        return tuple(jax.device_put(arrays, self._split))

    def train(self, task: loops.Task) -> Callable[..., Any]:
        """See `Pmap`."""
        same = self._same
        given = (same, same, self._split, self._split)
        return jax.jit(task.train, in_shardings=given, out_shardings=same, donate_argnums=(0, 1))

    def valid(self, task: loops.Task) -> Callable[..., Any]:
        """See `Pmap`."""
        given = (self._same, self._same, self._split, self._split)
        return jax.jit(task.valid, in_shardings=given, out_shardings=self._same, donate_argnums=1)

    def number(self, sums: Any) -> np.ndarray:
        """See `Pmap`."""
        return np.asarray(sums)


def _spec() -> PartitionSpec:
    return PartitionSpec(AXIS)


def _by_hand(case: Case) -> Pmap | Mesh:
    devices = jax.devices()[: case.devices]
    return Pmap(devices) if case.kind == "replicated" else Mesh(devices)


def hand(workload: Workload, case: Case, epochs: int, mark: loops.Mark) -> loops.Losses:
    """Train with one call per step and sums on the devices. On a CPU each call is awaited: the collectives of two steps
    in flight deadlock.
    """
    (train_rows, valid_rows), places, task = workload.data(), _by_hand(case), loops.Task(workload)
    train, valid, put = places.train(task), places.valid(task), case.feed == "put"
    wait = case.devices > 1 and jax.default_backend() == "cpu"
    leaves, losses = places.start(task.leaves), []
    valid_batches = [places.put(_shares(places, *b)) for b in loops.batches(valid_rows, workload.valid_batch)]
    for epoch in range(epochs):
        train_sums, valid_sums = (places.start(np.zeros(3, np.float32)) for _ in range(2))
        order = loops.order_of(len(train_rows["y"]), epoch)
        shuffled: Rows = {k: v[order] for k, v in train_rows.items()}
        for batch in loops.batches(shuffled, workload.batch):
            arrays = _shares(places, *batch)
            leaves, train_sums = train(leaves, train_sums, *(places.put(arrays) if put else arrays))
            if wait:
                train_sums.block_until_ready()
        for arrays in valid_batches:
            valid_sums = valid(leaves[: task.params], valid_sums, *arrays)
            if wait:
                valid_sums.block_until_ready()
        losses.append(loops.means((places.number(train_sums), places.number(valid_sums))))
        mark("epoch")
    return losses


def _shares(places: Pmap | Mesh, x: np.ndarray, y: np.ndarray) -> Placed:
    return places.rows(x), places.rows(y)


# -- the work of the host ----------------------------------------------------------------------------------------------


class Tiny(nnx.Module):
    """Twelve layers of 8 by 8: many arrays, and hardly any computation."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(12)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


TINY = Workload("tiny", Tiny, lambda: (_tiny(), _tiny()), 16, 16, 1, 0)


def _tiny() -> Rows:
    return {"x": np.ones((16, 8), np.float32), "y": np.zeros(16, np.int32)}


def _host_of_hand(case: Case) -> float:
    places, task, rows = _by_hand(case), loops.Task(TINY), _tiny()
    train, arrays = places.train(task), places.put(_shares(places, rows["x"], rows["y"]))
    carried = [places.start(task.leaves), places.start(np.zeros(3, np.float32))]

    def call() -> Any:
        carried[:] = train(*carried, *arrays)
        return carried[1]

    return _worked(call, case.calls)


def _host_of_learner(case: Case) -> float:
    from learner import ClassificationOutput, LearnerBuilder
    from learner.metrics import Accuracy
    from learner.steps.buffers import BatchBuffer
    from learner.training.feed.dispatch import Dispatch
    from learner.training.setup.dispatch_plan import make_runner

    def step(model: Any, batch: Rows) -> Any:
        return ClassificationOutput.from_logits(model(batch["x"]), batch["y"])

    strategy = _strategy(case)
    builder = LearnerBuilder("unused").strategy(strategy).metrics(Accuracy())
    learner = builder.build(Tiny(nnx.Rngs(0)), optax.adamw, RATE, train_step=step)
    runner = make_runner(learner.definition.step, learner.definition.init_placed(), strategy)
    feed = BatchBuffer(strategy.put(jax.tree.map(lambda x: x[None], _tiny()), 1), None, (False, True))
    dispatch, tally = Dispatch("loop", 1, feed, 0, 1, 1, 1, False), runner.start("train")
    return _worked(lambda: runner.train(tally, dispatch).table, case.calls)


def _worked(call: Callable[[], Any], calls: int) -> float:
    """Return the median of the seconds that this thread is busy in a call, without the wait for the result."""
    for _ in range(3):
        jax.block_until_ready(call())
    seconds = []
    for _ in range(calls):
        begin = time.thread_time()
        result = call()
        seconds.append(time.thread_time() - begin)
        jax.block_until_ready(result)
    return median(seconds)


def main(text: str) -> None:
    """Run the command. On a CPU, simulate as many devices as the case has."""
    case = Case(**json.loads(text))
    jax.config.update("jax_num_cpu_devices", case.devices)
    print(json.dumps(measure(case)))


if __name__ == "__main__":
    main(sys.argv[1])
