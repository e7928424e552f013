"""Tests of devices in configs and on the command line, and of `learner devices`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from jax.sharding import PartitionSpec as P

from learner.cli.configs.config import RunConfig
from learner.cli.devices import table
from learner.cli.help import key_help
from learner.runs.lock import locked
from tests.support.codes import named_case
from tests.support.runs import tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")

FSDP = {"class_path": "fsdp", "init_args": {"min_size": 1024}}
RULES = [{"attention.*kernel": [None, "model"]}, FSDP]


def strategy_of(config):
    return RunConfig(config).learner().definition.strategy


@pytest.mark.parametrize(
    ("changes", "description"),
    [
        ({"devices": 1}, "one device: cpu (cpu:0)"),
        ({"devices": 8}, "replicated on 8 devices (cpu)"),
        ({"devices": "all"}, "replicated on 8 devices (cpu)"),
        ({"devices": [0, 1]}, "replicated on 2 devices (cpu)"),
        ({"devices": None}, "one device: cpu (cpu:0)"),
        ({"strategy": "Replicated"}, "replicated on 8 devices (cpu)"),
        ({"strategy": "Sharded"}, "sharded over 8 devices (cpu): {'data': 8}, rows over 'data'"),
        ({"strategy": {"class_path": "SingleDevice", "init_args": {"device": 3}}}, "one device: cpu (cpu:3)"),
        (
            {"strategy": {"class_path": "Replicated", "init_args": {"devices": [4, 5], "sync_batch_norm": False}}},
            "replicated on 2 devices (cpu)",
        ),
        (
            {"strategy": {"class_path": "learner.strategies.Sharded", "init_args": {"devices": 2, "batch": []}}},
            "sharded over 2 devices (cpu): {'data': 2}, rows on every device",
        ),
    ],
)
def test_strategy_of_a_config_and_of_its_saved_text(importable, line_config, changes, description):
    config = RunConfig(line_config | changes)
    saved = yaml.safe_load(config.text())
    assert [key for key in ("devices", "strategy") if key in saved] == [k for k, v in changes.items() if v is not None]
    assert RunConfig(saved).text() == config.text()
    assert strategy_of(saved).description == description


def test_mesh_with_rules(importable, line_config):
    arguments = {"mesh": {"data": 4, "model": 2}, "rules": RULES, "batch": "data"}
    config = RunConfig(line_config | {"strategy": {"class_path": "Sharded", "init_args": arguments}})
    saved = yaml.safe_load(config.text())
    filled = {"class_path": "fsdp", "init_args": {"min_size": 1024, "axis": "data"}}
    changes = {**arguments, "rules": [RULES[0], filled], "devices": None}
    assert saved["strategy"] == {"class_path": "Sharded", "init_args": changes}
    assert RunConfig(saved).text() == config.text()
    strategy = strategy_of(saved)
    assert dict(strategy.mesh.shape) == {"data": 4, "model": 2}
    specs = [strategy.rules.spec(path, (64, 64), strategy.mesh.shape) for path in ("attention.kernel", "out.kernel")]
    assert specs == [P(None, "model"), P("data")]


@pytest.mark.parametrize(
    "rules", ["fsdp", ["fsdp"], {"class_path": "fsdp"}, [{"class_path": "learner.strategies.fsdp"}]]
)
def test_fsdp_needs_no_import_path(importable, line_config, rules):
    changes = {"strategy": {"class_path": "Sharded", "init_args": {"rules": rules}}}
    strategy = strategy_of(yaml.safe_load(RunConfig(line_config | changes).text()))
    assert strategy.rules.spec("w", (64, 64), {"data": 8}) == P("data")
    assert strategy.rules.rows


@pytest.mark.full
def test_invalid_devices_are_refused_and_no_file_is_written(learner, config):
    cases = [
        (["--devices=9"], "devices asks for 9, and there are 8"),
        (["--devices=[0, 8]"], "there is no device with the id 8"),
        (["--devices=most"], "devices is 'most'; it needs a number of devices, \"all\""),
        (["--devices=true"], "devices is True: it needs a whole number or a text"),
        (["--strategy=Replicate"], "there is no 'Replicate': did you mean 'Replicated'"),
        (["--strategy=Sharded", "--strategy.mash.data=8"], "Sharded has no argument 'mash': did you mean 'mesh'"),
        (["--strategy=Sharded", "--strategy.mesh.data=4"], "the mesh {'data': 4} needs 4 devices, and there are 8"),
        (["--strategy=Sharded", "--strategy.rules=fdsp"], "the rules of Sharded are 'fdsp'; give fsdp()"),
        (
            ["--strategy=Sharded", "--strategy.rules=[{class_path: fdsp}]"],
            "strategy.init_args.rules.0: there is no 'fdsp': did you mean 'fsdp'",
        ),
        (["--strategy=Sharded", "--strategy.rules={v: data}"], "the rule 'v' of Sharded is not used"),
        (["--strategy=Replicated", "--strategy.devices=[1, 1]"], "devices names cpu:1 twice"),
        (["--strategy=fsdp"], "strategy got Fsdp(min_size=1024, axis='data'); it needs Replicated(), Sharded("),
        (["--strategy=Sharded", "--devices=2"], "devices and strategy both choose the devices: leave out one of them"),
        (["--device=2"], "there is no option 'device': did you mean 'devices'"),
    ]
    for words, message in cases:
        with named_case((words, message)):
            code, out, err = learner("fit", config, *words)
            assert (code, out) == (2, "")
            assert message in err
            assert not os.path.exists("run")


def test_command_line_overrides_a_strategy(learner, config):
    words = ["--strategy=Sharded", "--strategy.mesh.data=4", "--strategy.mesh.model=2", "--strategy.rules.min_size=8"]
    code, out, err = learner("fit", config, *words[:3], "--strategy.rules=fsdp", words[3], "--print_config")
    assert (code, err) == (0, "")
    rules = {"class_path": "fsdp", "init_args": {"min_size": 8, "axis": "data"}}
    arguments = {"mesh": {"data": 4, "model": 2}, "rules": rules, "batch": "data", "devices": None}
    assert yaml.safe_load(out)["strategy"] == {"class_path": "Sharded", "init_args": arguments}


def test_help_lists_the_strategies():
    lines = key_help("strategy", "", {}).splitlines()
    assert "  Replicated(devices=null, sync_batch_norm=true)" in lines
    assert "  Sharded(mesh=null, rules=null, batch=data, devices=null)" in lines
    assert "  SingleDevice(device=null)" in lines
    assert "  fsdp(min_size=1024, axis=data)" in lines
    assert "--sync_batch_norm" in key_help("strategy", "Replicated", {})


@pytest.mark.full
def test_run_on_eight_devices_resumes_and_predicts_on_fewer(learner, config, workplace):
    """24 rows give each of the 8 devices some."""
    words = ["--train.dataset={class_path: mymodule.rows, init_args: {count: 24}}", "--train.batch_size=8"]
    assert learner("fit", config, *words, "--directory=one", "--num_epochs=3")[0] == 0
    assert learner("fit", config, *words, "--devices=8")[0] == 0
    assert "devices: replicated on 8 devices (cpu) of 8" in Path("run/experiment.log").read_text()
    assert yaml.safe_load(Path("run/config.yaml").read_text())["devices"] == 8
    code, _, err = learner("resume", "run", "--num_epochs=3", "--devices=null", "--strategy=Sharded")
    assert code == 0, err
    assert "sharded over 8 devices" in Path("run/experiment.log").read_text()
    one, other = (json.loads(Path(name, "summary.json").read_text())["metrics"] for name in ("one", "run"))
    for key in one:
        assert other[key]["last"]["value"] == pytest.approx(one[key]["last"]["value"], rel=1e-5), key
    np.savez(workplace / "data.npz", x=np.ones((7, 3), np.float32), y=np.ones(7, np.float32))
    for where in ("--strategy.rules=fsdp", "--strategy=SingleDevice", "--strategy=Replicated"):
        code, out, err = learner("evaluate", "run", where)
        assert code == 0, err
        assert float(out.split()[-1]) == pytest.approx(one["valid/Loss"]["last"]["value"], rel=1e-4)
        assert learner("predict", "run", "data.npz", "-o", "out.npz", where)[0] == 0
        with np.load("out.npz") as outputs:
            assert outputs["predictions"].shape == (7,)
            assert np.unique(outputs["predictions"]).size == 1


# -- learner devices ---------------------------------------------------------------------------------------------------


def test_devices_are_listed_with_the_default_strategies(learner, workplace):
    code, out, err = learner("devices")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["id", "platform", "kind", "process", "memory", "used", "free"]
    assert [line.split() for line in lines[1:9]] == [[str(i), "cpu", "cpu", "0", "-", "-", "-"] for i in range(8)]
    assert lines[9:] == [
        "",
        "1 process",
        "by default: one device: cpu (cpu:0)",
        "devices: all: replicated on 8 devices (cpu)",
    ]
    assert learner("devices", "--platform=cpu") == (code, out, err)


def make_device(number, process=0, **memory):
    """Return a device like those of accelerators; memory of other processes' devices raises."""

    def memory_stats():
        assert process == 0
        return memory

    return SimpleNamespace(
        id=number, platform="gpu", device_kind="Model T", process_index=process, memory_stats=memory_stats
    )


def test_memory_of_devices():
    devices = [make_device(0, bytes_in_use=10**9, bytes_limit=85 * 10**9), make_device(1), make_device(10, process=1)]
    assert table(devices) == [
        "id  platform     kind  process   memory    used     free",
        "0        gpu  Model T        0  85.0 GB  1.0 GB  84.0 GB",
        "1        gpu  Model T        0        -       -        -",
        "10       gpu  Model T        1        -       -        -",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--platform=cqu"], "--platform is 'cqu': did you mean 'cpu'?"),
        (["--platform=tpu"], "JAX finds no tpu here: "),
        (["--platfrom=cpu"], "learner devices takes no '--platfrom=cpu': did you mean '--platform'?"),
        (["run"], "learner devices takes no 'run'"),
    ],
)
def test_unknown_platforms_and_arguments_are_refused(learner, workplace, words, message):
    code, out, err = learner("devices", *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.full
def test_devices_are_not_initialized_before_they_are_needed(config):
    """The environment and `init_distributed` must be able to set the devices first. JAX refuses these settings once its
    devices exist.
    """
    program = """
import jax
from learner.cli.main import main
main(["fit", "line.yaml", "--strategy=Sharded", "--strategy.rules=fsdp", "--print_config"])
main(["fit", "line.yaml", "--strategy=Sharded", "--print_sharding", "--help"])
jax.config.update("jax_num_cpu_devices", jax.config.jax_num_cpu_devices)
main(["devices"])
"""
    root = str(Path(sys.modules["learner.cli.main"].__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "JAX_NUM_CPU_DEVICES": "3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "devices: all: replicated on 3 devices (cpu)"


# -- --print_sharding --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_print_sharding_writes_no_file(learner, config, workplace):
    words = ["--print_sharding", "--strategy=Sharded", "--strategy.rules={w: data}", "--strategy.devices=3"]
    before = tree_of(workplace)
    code, out, err = learner("fit", config, *words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "sharded over 3 devices (cpu): {'data': 3}, rows over 'data', the model over 'data'"
    assert lines[3].split() == ["w", "[3]", "float32", "data", "4", "bytes", "0", "bytes"]
    assert lines[6].split() == ["parameters", "4", "bytes", "12", "bytes", "12", "bytes"]
    assert lines[-1].startswith("loop ")
    assert tree_of(workplace) == before


@pytest.mark.full
def test_print_sharding_beside_a_training_run(learner, config, workplace):
    """The lock of a training run does not prevent it."""
    assert learner("fit", config)[0] == 0
    before = tree_of("run")
    with locked(workplace / "run"):
        code, out, err = learner("fit", config, "--print_sharding")
    assert (code, err) == (0, "")
    assert out.startswith("one device: cpu (cpu:0)\n")
    assert tree_of("run") == before
