"""Compare XLA's programs for TPUs, compiled without a TPU, with docs/scaling.md."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MLP = 4 * (64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10)  # bytes of its parameters
SPLIT = 4 * (64 * 128 + 128 * 128 + 128 * 10)  # bytes of its matrices
SMALL = 1000  # bytes: losses, norms, metrics, counters

REDUCE_SCATTER = """\
%all-reduce-scatter.3 (input_0: f32[64,128]) -> f32[64,16] {
  %all-reduce.33 = f32[64,128]{0,1:T(8,128)} all-reduce(%input_0), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}
}
%one (param: f32[16,128]) -> f32[128,128] {
  %all-gather.1 = f32[128,128]{1,0:T(8,128)} all-gather(%param), channel_id=3, replica_groups=mesh['a'=8] {'a'}
}
%two (param: f32[16,128]) -> f32[128,128] {
  %all-gather.2 = f32[128,128]{1,0:T(8,128)S(1)} all-gather(%param), channel_id=3, replica_groups=mesh['a'=8] {'a'}
}
"""

SCATTER_START = """\
  %r = ((f32[128]), (f32[16])) reduce-scatter-start(%x), channel_id=2, replica_groups=mesh['a'=8] {'a'}, dimensions={0}
  %s = f32[13]{0} all-reduce-start(%y), channel_id=3, replica_groups=mesh['a'=8] {'a'}, to_apply=%add
"""


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.ahead")


def test_collectives_are_read_as_tpus_have_them(ahead):
    """A reduce-scatter is an all-reduce with slices, and one channel is one collective."""
    sent, results = ahead.collectives(REDUCE_SCATTER)
    assert sent == {"reduce-scatter": 4 * 64 * 128 * 7 / 8, "all-gather": 4 * 128 * 128 * 7 / 8}
    assert {kind: len(shapes) for kind, shapes in results.items()} == {"reduce-scatter": 1, "all-gather": 1}


def test_asynchronous_collectives_have_their_arguments_in_their_shape(ahead):
    """XLA for GPUs merges the collectives of all arrays, whose shape is the pair of arguments and results."""
    start = " = ((f32[16], f32[16,64]), (f32[128], f32[128,64])) all-gather-start(%a, %b), channel_id=1, "
    sent, _ = ahead.collectives(start + "replica_groups=mesh['a'=8] {'a'}\n" + SCATTER_START)
    assert sent == {
        "all-gather": 4 * 128 * 65 * 7 / 8,
        "reduce-scatter": 4 * 128 * 7 / 8,
        "all-reduce": 4 * 13 * 14 / 8,
    }


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    """Return the properties of the MLP's programs, from a separate process: libtpu looks for TPUs once per process."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip('libtpu is not installed: pip install "libtpu==0.0.42.*"')
    path = tmp_path_factory.mktemp("ahead") / "facts.json"
    command = [sys.executable, "-m", "benchmarks.ahead", "--workloads", "mlp", "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=300)
    return json.loads(path.read_text())


@pytest.mark.full
def test_the_whole_state_is_donated_and_nothing_moves_to_the_host(mlp):
    assert len(mlp) == 16
    for name, facts in mlp.items():
        assert facts["host"] == [], name
        assert facts["donated"] >= facts["state"], name


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [1, 4])
def test_bytes_are_those_of_the_formulas(mlp, accumulate):
    sent = {name: mlp[f"mlp, {name}, {accumulate}, train"]["sent"] for name in ("Replicated", "Sharded")}
    for kinds in sent.values():
        assert kinds.keys() == {"all-reduce"}
        assert 0 <= kinds["all-reduce"] - 2 * MLP * 7 / 8 <= SMALL
    assert mlp[f"mlp, SingleDevice, {accumulate}, train"]["sent"] == {}
    split = mlp[f"mlp, Sharded, fsdp, {accumulate}, train"]["sent"]
    assert split["all-gather"] == split["reduce-scatter"] == SPLIT * 7 / 8
    assert split["all-reduce"] <= 4 * SMALL  # biases and small arrays
