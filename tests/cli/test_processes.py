"""Tests of the options that make a command one of several processes."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from learner.cli.parsing import Parser
from learner.cli.processes import connected, process_options
from learner.errors import LearnerError
from tests.support.codes import raises_code
from tests.support.processes import free_port, together

THREE = ["--coordinator", "10:30", "--num_processes=2", "--process_id", "1"]


def parse(*words):
    parser = Parser("it", "", keys=True)
    parser.add_config()
    parser.add_processes()
    return parser.read(words)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], None),
        (["--distributed"], {}),
        (["--distributed=true"], {}),
        (["--distributed=false"], None),
        (THREE, {"coordinator": "10:30", "num_processes": 2, "process_id": 1}),
        (["--distributed", *THREE, "--process_id=0"], {"coordinator": "10:30", "num_processes": 2, "process_id": 0}),
        (["--process_id=0"], {"process_id": 0}),
        (["--distributed", "--timeout=60", "--heartbeat=1.5"], {"timeout": 60, "heartbeat": 1.5}),
    ],
)
def test_process_options_are_removed_from_the_command_line(words, arguments):
    line = parse(*words, "line.yaml", "--num_epochs=3")
    assert process_options(line) == arguments
    assert (line.config, line.overrides) == ("line.yaml", [("num_epochs", "3")])


def test_invalid_switch_is_refused():
    with raises_code("cli-switch-value", name="distributed"):
        parse("line.yaml", "--distributed=2")


@pytest.mark.parametrize(("name", "value"), [("num_processes", "two"), ("coordinator", "localhost"), ("timeout", -1)])
def test_wrong_options_are_refused_before_a_process_waits(name, value, capsys):
    arguments = {"coordinator": "localhost:1", "num_processes": 2, "process_id": 0, name: value}
    with pytest.raises(LearnerError, match=name), connected(arguments):
        pass
    assert capsys.readouterr().err == ""


def test_single_process_is_not_connected(monkeypatch):
    monkeypatch.setattr("learner.cli.processes.init_distributed", None)  # calling it would fail
    with connected(None):
        pass


@pytest.mark.parametrize(
    "words", [["fit", "line.yaml"], ["resume", "run"], ["evaluate", "run"], ["predict", "run", "x.npz", "-o", "y.npz"]]
)
def test_incomplete_options_are_refused(learner, workplace, line_config, words):
    Path("run").mkdir(mode=0o700)
    for path in ("line.yaml", "run/config.yaml"):
        Path(path).write_text(yaml.safe_dump(line_config))
    code, out, err = learner(*words, "--coordinator=localhost:1")
    assert (code, out) == (2, "")
    assert err == (
        "learner: num_processes and process_id are missing: coordinator, num_processes and process_id belong together\n"
    )


def test_config_has_no_process_options(learner, workplace, line_config):
    Path("line.yaml").write_text(yaml.safe_dump(line_config))
    code, plain, _ = learner("fit", "line.yaml", "--print_config")
    assert (code, plain, "") == learner("fit", "line.yaml", "--print_config", "--distributed", *THREE)
    assert "coordinator" not in plain
    for key in ("distributed", "coordinator"):
        Path("wrong.yaml").write_text(yaml.safe_dump({**line_config, key: True}))
        code, _, err = learner("fit", "wrong.yaml")
        assert (code, f"there is no option '{key}': it is an option of the commands fit, " in err) == (2, True)


@pytest.mark.parametrize(
    "words", [["fit", "--help=processes"], ["resume", "--help"], ["evaluate", "--help"], ["predict", "--help"]]
)
def test_help_describes_the_process_options(learner, words):
    code, out, _ = learner(*words)
    assert code == 0
    assert "--distributed" in out
    assert "--coordinator HOST:PORT --num_processes N --process_id I" in out


@pytest.mark.full
def test_first_of_several_processes_writes_the_predictions(learner, trained, workplace):
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    np.savez("data.npz", x=x, y=x.sum(1))
    assert learner("predict", "run", "data.npz", "-o", "alone.npz")[0] == 0
    common = ["-m", "learner", "predict", "run", "data.npz", "-o", "out.npz", "--strategy=Sharded"]
    common += ["--coordinator", f"localhost:{free_port()}", "--num_processes=2"]
    first, other = together([[*common, f"--process_id={index}"] for index in (0, 1)])
    assert (first.code, other.code, other.out) == (0, 0, ""), first.err + other.err
    assert first.out.splitlines()[0].startswith("checkpoint: step 6")
    with np.load("alone.npz") as alone, np.load("out.npz") as outputs:
        assert set(outputs) == set(alone)
        np.testing.assert_allclose(outputs["predictions"], alone["predictions"], rtol=1e-6)


MODEL = """
import jax
from learner import LearnerError
from learner.distributed.process_group import hosts
from tests.support.codes import raises_code

print(jax.process_index(), jax.process_count(), len(jax.devices()))
if jax.process_index() == 1:
    raise LearnerError("this machine has no camera")


def model():
    hosts().all_gather_json("where is process 1?")
"""


@pytest.mark.full
def test_processes_are_connected_before_imports_and_share_errors(workplace, line_config):
    Path("machine.py").write_text(MODEL)
    content = {**line_config, "model": "machine.model"}
    Path("line.yaml").write_text(yaml.safe_dump(content))
    address = f"localhost:{free_port()}"
    common = ["-m", "learner", "fit", "line.yaml", "--coordinator", address, "--num_processes=2"]
    first, other = together([[*common, f"--process_id={index}"] for index in (0, 1)])
    assert [process.out.split("\n")[0] for process in (first, other)] == ["0 2 2", "1 2 2"]
    assert (first.code, other.code) == (2, 2), first.err
    assert first.err.startswith(f"learner: process 0 waits at {address} for the other processes (--num_processes 2)\n")
    assert "process 1 failed: " in first.err
    assert "this machine has no camera" in first.err
    assert "this machine has no camera" in other.err
