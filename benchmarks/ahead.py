"""Compile the programs of a run for absent TPUs or GPUs, and print properties of the compiled programs.

    pip install "libtpu==0.0.42.*"
    python -m benchmarks.ahead --topology v5e:2x4

    pip install "jax[cuda13]"
    python -m benchmarks.ahead --topology h100:8

For each workload, strategy and number of micro-batches: the loop of a training dispatch and of a validation dispatch,
compiled by `jax.experimental.topologies`. Nothing is trained, so there are no times: memory of each device, donated
bytes, collectives by kind with the bytes that each device sends, copies, loops and transfers to the host. A collective
within a loop is counted once: the body of the loop is a step, or a micro-batch of it.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import os
import re
import unittest.mock
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.workloads import CNN, MLP, Transformer
from learner import ClassificationOutput, LearnerBuilder, SequenceOutput
from learner.steps.buffers import BatchBuffer
from learner.strategies import Replicated, Sharded, SingleDevice, fsdp
from learner.training.setup.dispatch_plan import make_runner

LENGTH = 64  # length of a sequence
STEPS = 8  # steps in the buffer of a dispatch
HOST = ("infeed", "outfeed", "send", "recv", "send-done", "recv-done")
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
TENSOR = {
    r"attention\.(query|key|value)\.kernel": (None, "model"),
    r"attention\.(query|key|value)\.bias": "model",
    r"attention\.out\.kernel": "model",
    r"up\.kernel": (None, "model"),
    r"up\.bias": "model",
    r"down\.kernel": "model",
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """Properties of a compiled program; bytes are per device.

    Attributes:
      arguments, outputs, temporaries: bytes.
      donated: bytes of the outputs that reuse buffers of arguments.
      state: bytes of the state that the program changes, in XLA's layout.
      sent: bytes that each device sends in a ring, by the kind of collective.
      collectives: number of collectives, by kind.
      copies: number of copies of 64 KiB or more, and their bytes, including those into on-chip memory.
      loops: number of loops with a known number of iterations, and without. The loop of a dispatch has none: its number
        of steps is an argument.
      host: operations that move data between the device and the host.
    """

    arguments: int
    outputs: int
    donated: int
    temporaries: int
    state: int
    sent: dict[str, float]
    collectives: dict[str, int]
    copies: tuple[int, int]
    loops: tuple[int, int]
    host: list[str]


def tpu_devices(topology: str) -> list[Any]:
    """Return the devices of a topology such as `v5e:2x4`. Needs the package `libtpu`, and no TPU."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu would look for the metadata of a cloud machine
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no TPU exists that another process could hold
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", f"{topology.split(':')[0]}-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)


def gpu_devices(count: int) -> list[Any]:
    """Return `count` devices of one host with H100 GPUs. Needs `jax[cuda13]`, and no GPU."""
    from jax.experimental import topologies

    config, shape = Path(__file__).with_name("h100.txtpb").read_text(), f"1x1x{count}"
    return list(topologies.get_topology_desc("h100", "cuda", target_config=config, topology=shape).devices)


def devices_of(topology: str) -> list[Any]:
    """Return the devices of `h100:COUNT`, or of a TPU topology."""
    kind, _, size = topology.partition(":")
    return gpu_devices(int(size)) if kind == "h100" else tpu_devices(topology)


@contextlib.contextmanager
def shapes_for_arrays() -> Iterator[None]:
    """Make `jax.device_put` return shapes with shardings: absent devices hold no arrays."""

    def put(tree: Any, sharding: Any) -> Any:
        if isinstance(sharding, jax.sharding.Sharding):
            sharding = jax.tree.map(lambda _: sharding, tree)
        shape = lambda x, where: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=where)  # noqa: E731
        return jax.tree.map(shape, tree, sharding)

    with unittest.mock.patch.object(jax, "device_put", put):
        yield


def compiled(model: Any, step: Any, batch: dict[str, np.ndarray], strategy: Any, accumulate: int) -> dict[str, Any]:
    """Return the compiled loops of a training dispatch and of a validation, and the bytes of the state.

    Args:
      model: makes it from random streams.
      step: the train and valid step of the model.
      batch: a micro-batch.
      strategy: over devices of a topology.
      accumulate: micro-batches of a step.
    """
    builder = LearnerBuilder("unused").strategy(strategy).grads_accumulation(accumulate)
    learner = builder.build(lambda: model(nnx.Rngs(0)), optax.adamw, 1e-3, train_step=step, valid_step=step)
    # Without this, batches reach one device through a program, which would have to run.
    place = lambda tree, axis=0: jax.device_put(tree, strategy.replicated_sharding)  # noqa: E731
    put = place if isinstance(strategy, SingleDevice) else strategy.put
    with shapes_for_arrays():
        state = learner.definition.placed_shapes()
        runner = make_runner(learner.definition.step, state, strategy)
        fresh = runner._programs.fresh
        measures = {"train": runner._step.train_metrics, "valid": runner._step.valid_metrics}
        for kind, measure in measures.items():
            fresh[kind] = lambda measure=measure: jax.eval_shape(measure.fresh)
        rows = jax.tree.map(lambda x: np.broadcast_to(x, (STEPS * accumulate, *x.shape)), batch)
        feed = BatchBuffer(put(rows, 1), None, (False, True))
        calls = {kind: runner._example_call(kind, "loop", feed) for kind in ("train", "valid")}
        programs = {kind: program.lower(*arguments).compile() for kind, (program, arguments) in calls.items()}
    changed = dataclasses.replace(state, lr_scale=None, rng=None)
    return {**programs, "state": sum(map(_bytes_on_device, jax.tree.leaves(changed)))}


def _bytes_on_device(x: Any) -> int:
    return int(math.prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize)


def facts(program: Any, state: int = 0) -> Facts:
    """Return the properties of a compiled program."""
    text, memory = program.as_text(), program.memory_analysis()
    sent, shapes = collectives(text)
    copies = [size for shape in re.findall(r" = (\S+) copy(?:-start)?\(", text) if (size := bytes_of(shape)) >= 2**16]
    whiles = [line for line in text.splitlines() if re.search(r" while\(", line)]
    known = sum("known_trip_count" in line for line in whiles)
    operations = re.findall(r" = (?:\S+|\(.*?\)) ([a-z-]+)\(", text)
    return Facts(
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        state,
        sent,
        {kind: len(of_kind) for kind, of_kind in shapes.items()},
        (len(copies), sum(copies)),
        (known, len(whiles) - known),
        [name for name in operations if name in HOST]
        + re.findall(r"MoveToHost|MoveToDevice|xla_python_\w*callback", text),
    )


def bytes_of(shape: str) -> int:
    """Return the bytes of the arrays of a shape in the text of a program, without padding.

    >>> bytes_of("f32[8,128]{1,0:T(8,128)}"), bytes_of("(bf16[2], pred[3])")
    (4096, 7)
    """
    arrays = re.findall(r"\b([a-z]+)(\d*)[a-z\d]*\[([\d,]*)\]", shape)
    return sum(
        math.prod(int(axis) for axis in axes.split(",") if axis) * (int(bits or 8) // 8 or 1)
        for _, bits, axes in arrays
    )


def collectives(text: str) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the bytes that each device sends in a ring, and the results, by the kind of collective.

    XLA for TPUs writes a reduce-scatter as a computation of an all-reduce and slices, identified by its name, and
    repeats an asynchronous collective, on one channel, in each of the computations that overlap with it.

    Args:
      text: the text of a compiled program.
    """
    sent: dict[str, float] = collections.defaultdict(float)
    results: dict[str, list[str]] = collections.defaultdict(list)
    computation, seen = "", set()
    pattern = re.compile(rf" = (\S+|\(.*?\)) ({'|'.join(KINDS)})(-start)?\((.*)")
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")):
            computation = line
        if (match := pattern.search(line)) is None:
            continue
        result, kind, start, rest = match.groups()
        if start and kind != "all-reduce":
            result = outputs_of(result)
        if computation.startswith("%all-reduce-scatter"):
            kind = "reduce-scatter"
        channel = re.search(r"channel_id=(\d+)", rest)
        key = kind, channel and channel[1], tuple(re.findall(r"\[[\d,]*\]", result))
        if key in seen and channel is not None:
            continue
        seen.add(key)
        n = group_size(rest)
        # A fused reduce-scatter is counted by its all-reduce, whose result is full-size; a single operation by its
        # part.
        whole = kind != "reduce-scatter" or computation.startswith("%all-reduce-scatter")
        times = {"all-reduce": 2 * (n - 1) / n, "all-gather": (n - 1) / n, "reduce-scatter": (n - 1) / n}.get(kind, 1)
        sent[kind] += bytes_of(result) * times * (1 if whole else n)
        results[kind].append(result)
    return dict(sent), dict(results)


def outputs_of(shape: str) -> str:
    """Return the second half of the shape of an asynchronous collective, which has its arguments first.

    >>> outputs_of("(f32[1,4]{1,0}, f32[8,4]{1,0})"), outputs_of("((f32[2], f32[3]), (f32[16], f32[24]))")
    ('f32[8,4]', 'f32[16], f32[24]')
    """
    arrays = re.findall(r"\b[a-z]+\d*[a-z\d]*\[[\d,]*\]", shape)
    return ", ".join(arrays[len(arrays) // 2 :])


def group_size(text: str) -> int:
    """Return the number of participating devices, for each notation of XLA.

    >>> [group_size(f"replica_groups={x}") for x in ("{{0,1,2,3},{4,5,6,7}}", "[2,4]<=[8]", "mesh['a'=2,'b'=4] {'b'}")]
    [4, 4, 4]
    """
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    if strided := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(strided[1])
    if axes := re.search(r"replica_groups=mesh\[([^]]*)\][^{]*\{([^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", axes[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes[2]))
    return 2  # pairs of a permutation


def classify(model: Any, batch: Any) -> Any:
    """Return the output of the classifiers."""
    return ClassificationOutput.from_logits(model(batch["x"]), batch["y"])


def predict_next(model: Any, batch: Any) -> Any:
    """Return the output of the transformer."""
    return SequenceOutput.from_logits(model(batch["x"]), batch["y"])


def workloads(rows: int) -> dict[str, tuple[Any, Any, dict[str, np.ndarray]]]:
    """Return the model, the step and a micro-batch of `rows` rows, by name."""
    labels = np.zeros(rows, np.int32)
    tokens = {name: np.zeros((rows, LENGTH), np.int32) for name in ("x", "y")}
    return {
        "mlp": (MLP, classify, {"x": np.zeros((rows, 64), np.float32), "y": labels}),
        "transformer": (lambda rngs: Transformer(rngs, 128, 2, LENGTH, 64), predict_next, tokens),
        "cnn": (CNN, classify, {"x": np.zeros((rows, 28, 28, 1), np.float32), "y": labels}),
    }


def strategies(devices: Sequence[Any], workload: str) -> dict[str, Any]:
    """Return the strategies for a workload, by name."""
    by_name = {
        "SingleDevice": SingleDevice(devices[0]),
        "Replicated": Replicated(list(devices)),
        "Sharded": Sharded(devices=list(devices)),
        "Sharded, fsdp": Sharded(rules=fsdp(1), devices=list(devices)),
    }
    if workload == "transformer":
        mesh = {"data": len(devices) // 2, "model": 2}
        by_name["Sharded, tensor"] = Sharded(mesh, TENSOR, devices=list(devices))
    return by_name


def line_of(program: Facts) -> str:
    """Return a row of the table."""
    sent = ", ".join(f"{program.collectives[kind]} {kind} {size / 1e3:.1f}" for kind, size in program.sent.items())
    donated = f"{100 * min(1.0, program.donated / program.state):.0f} %" if program.state else ""
    memory = " | ".join(f"{x / 1e6:.2f}" for x in (program.arguments, program.temporaries))
    copies = f"{program.copies[0]} ({program.copies[1] / 1e6:.2f})"
    return f"{memory} | {donated} | {sent} | {copies} | {program.loops[0]} + {program.loops[1]} | {len(program.host)}"


def main() -> None:
    """Compile, and print one line per program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x4", help="of TPUs, or h100:COUNT (default: v5e:2x4)")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "transformer", "cnn"])
    parser.add_argument("--strategies", nargs="+", help="names as they are printed; default: all")
    parser.add_argument("--accumulate", type=int, nargs="+", default=[1, 4], help="micro-batches of a step")
    parser.add_argument("--rows", type=int, default=128, help="of a micro-batch, over all devices")
    parser.add_argument("--json", help="write the facts into this file")
    parser.add_argument("--text", help="write the programs into this folder")
    options = parser.parse_args()
    devices = devices_of(options.topology)
    title = "arguments | temporaries | state donated | collectives, kB sent | copies (MB) | loops known + not | host"
    print(f"MB on each of {len(devices)} devices of {options.topology}\n\n| program | {title} |\n{'|---' * 8}|")
    everything = {}
    for workload in options.workloads:
        model, step, batch = workloads(options.rows)[workload]
        for name, strategy in strategies(devices, workload).items():
            for accumulate in options.accumulate if name in (options.strategies or [name]) else ():
                programs = compiled(model, step, batch, strategy, accumulate)
                for kind in ("train", "valid"):
                    key = f"{workload}, {name}, {accumulate}, {kind}"
                    everything[key] = program = facts(programs[kind], programs["state"] * (kind == "train"))
                    print(f"| {key} | {line_of(program)} |", flush=True)
                    if options.text:
                        os.makedirs(options.text, exist_ok=True)
                        with open(f"{options.text}/{key.replace(', ', '-')}.txt", "w") as file:
                            file.write(programs[kind].as_text())
    if options.json:
        with open(options.json, "w") as file:
            json.dump({key: dataclasses.asdict(program) for key, program in everything.items()}, file, indent=1)


if __name__ == "__main__":
    main()
