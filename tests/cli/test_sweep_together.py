"""Tests of `learner sweep --together`: members that differ in traced values train in one program."""

import contextlib
import io
import json
import shlex
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from flax import nnx

from learner.cli.configs.recipes import Seeds
from learner.cli.configs.sweep_groups import groups_of
from learner.cli.main import main
from learner.cli.sweeps.sweep_plan import sweep_plan
from learner.cli.usage import sweep_parser
from learner.config.sweep_space import SweepSpace
from learner.errors import LearnerError
from learner.runs.find import find_runs
from learner.runs.history import read_history
from learner.runs.layout import read_summary
from tests.support.codes import raises_code
from tests.support.runs import tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")

MODELS = """

from flax import nnx


class Line(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(3, 1, rngs=rngs)

    def train_step(self, batch):
        return RegressionOutput.from_predictions(self.layer(batch["x"])[:, 0], batch["y"])

    valid_step = train_step


def of_key(key):
    return {"w": jax.random.normal(key, (3,))}


def of_seed(seed: int = 0):
    return {"w": jnp.full(3, seed, jnp.float32)}


def hook(info, model):
    pass


def explode(learning_rate):
    # The parameters of rates above 0.05 are NaN after the fifth step.
    late = optax.scale_by_schedule(lambda step: jnp.where((learning_rate > 0.05) & (step > 3), jnp.nan, 1.0))
    return optax.chain(optax.sgd(learning_rate), late)


class Pressing:
    def __len__(self):
        return 3

    def __iter__(self):
        import os, pathlib, signal

        for batch in batches():
            calls = pathlib.Path("calls")
            calls.write_text((calls.read_text() if calls.exists() else "") + "x")
            if len(calls.read_text()) == 10:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch
"""
NNX = {"model": "mymodule.Line", "train_step": None, "valid_step": None}


def plan_of(*words):
    return sweep_plan(sweep_parser().read(list(words)))


@pytest.fixture
def write(importable, line_config):
    with open("mymodule.py", "a") as file:
        file.write(MODELS)

    def write(**changes):
        train = line_config["train"] | {"shuffle": False}  # all members read one order
        Path("line.yaml").write_text(yaml.safe_dump({**line_config, "num_epochs": 1, "train": train, **changes}))
        return "line.yaml"

    return write


def losses(directory):
    return {run.directory.name: list(read_history(run.directory)["valid/Loss"]) for run in find_runs([directory])}


TOGETHER = ("--lr=0.1,0.05,0.1", "--seed=0,7,7", "--optimizer.momentum=0.5,0.9,0.9", "--zipped", "--together")
MEMBERS = ["000-lr=0.1-seed=0-momentum=0.5", "001-lr=0.05-seed=7-momentum=0.9", "002-lr=0.1-seed=7-momentum=0.9"]


@pytest.fixture(scope="module")
def _trained_together(shared_workplace, compiled_once):
    """Train a population of three members once, in `run-sweep` of the shared directory."""
    config = yaml.safe_load((shared_workplace / "line.yaml").read_text())
    with (shared_workplace / "mymodule.py").open("a") as file:
        file.write(MODELS)
    (shared_workplace / "line.yaml").write_text(yaml.safe_dump({**config, **NNX, "num_epochs": 1}))
    with contextlib.chdir(shared_workplace), contextlib.redirect_stdout(io.StringIO()):
        assert main(["sweep", "line.yaml", *TOGETHER]) == 0
    del sys.modules["mymodule"]  # each test imports another one


@pytest.fixture
def trained_together(_trained_together, shared_workplace, importable):
    """Copy the population and its config, and return the path of the config."""
    for name in ("mymodule.py", "line.yaml"):
        shutil.copy(shared_workplace / name, name)
    shutil.copytree(shared_workplace / "run-sweep", "run-sweep")
    return "line.yaml"


def test_members_equal_runs_of_their_configs(learner, trained_together):
    """The configs of members contain the order of the data that all members share. Two members differ in all values."""
    assert [run.directory.name for run in find_runs(["run-sweep"])] == MEMBERS
    assert [member.name for member in plan_of(trained_together, *TOGETHER[:-1]).members] == MEMBERS
    assert read_summary(Path("run-sweep"))["stopped_by"] == "num_epochs"
    together = losses("run-sweep")
    assert len({values[0] for values in together.values()}) == 3
    for name in MEMBERS[:2]:
        assert learner("fit", f"run-sweep/{name}/config.yaml", f"--directory=alone/{name}")[0] == 0
        np.testing.assert_allclose(together[name], losses(f"alone/{name}")[name], rtol=1e-5)
    members, alone = find_runs(["run-sweep"]), find_runs(["alone"])
    for one, of_one in zip(members, alone, strict=False):
        assert one.optimizer == of_one.optimizer
        assert [one.fingerprint[key] for key in ("lr", "seed")] == [of_one.fingerprint[key] for key in ("lr", "seed")]
    assert [run.optimizer["optimizer.momentum"] for run in members] == [0.5, 0.9, 0.9]


@pytest.mark.full
def test_members_whose_model_takes_a_key_equal_those_of_an_ordinary_sweep(learner, write):
    path = write(model="mymodule.of_key")
    assert learner("sweep", path, *TOGETHER[:-1], "--directory=alone")[0] == 0
    assert learner("sweep", path, *TOGETHER, "--directory=together")[0] == 0
    alone, together = losses("alone"), losses("together")
    assert list(alone) == list(together) == MEMBERS
    np.testing.assert_allclose(list(together.values()), list(alone.values()), rtol=1e-5)


@pytest.mark.full
def test_command_of_the_best_member_has_the_shared_order(learner, write, line_config):
    path = write(seed=3, train=line_config["train"] | {"shuffle": True})
    out = learner("sweep", path, "--seed=0,7", "--directory=together", "--together")[1]
    command = shlex.split(out.partition("by itself: ")[2].splitlines()[0])
    assert "--train.shuffle=3" in command
    assert learner(*command[1:])[0] == 0
    best = out.partition("its best member: together/")[2].partition(",")[0]
    np.testing.assert_allclose(losses("together-best")["together-best"], losses("together")[best], rtol=1e-5)


@pytest.mark.full
def test_values_that_cannot_be_traced_have_separate_populations(learner, write):
    words = ("sweep", write(sweep={"together": True}), "--train.batch_size=4,6", "--lr=0.1,0.2")
    code, out, _ = learner(*words)
    assert code == 0
    names = [line.split()[1] for line in out.splitlines()[:4]]
    assert names == [
        "population-0-batch_size=4/000-batch_size=4-lr=0.1",
        "population-0-batch_size=4/001-batch_size=4-lr=0.2",
        "population-1-batch_size=6/002-batch_size=6-lr=0.1",
        "population-1-batch_size=6/003-batch_size=6-lr=0.2",
    ]
    assert [run.directory.parent.parent.name for run in find_runs(["run-sweep"])] == ["run-sweep"] * 4
    before = tree_of(Path("run-sweep"))
    assert learner(*words)[1].count(", kept\n") == 4
    assert tree_of(Path("run-sweep")) == before


@pytest.mark.full
def test_halving_ends_members(learner, write):
    """The rate 0 learns nothing. The command for the best member has no halving."""
    words = ("sweep", write(num_epochs=2), "--lr=0.0,0.05", "--halving.monitor=train/Loss", "--halving.keep=0.5")
    code, out, err = learner(*words)
    assert (code, err) == (0, "")
    assert ", halving: place 2 of 2 by train/Loss " in out.splitlines()[0]
    assert [len(values) for values in losses("run-sweep").values()] == [1, 2]
    code, _, err = learner("resume", "run-sweep/000-lr=0.0", "--num_epochs=3")
    assert code == 2
    remedy = shlex.split(err[err.index("learner fit ") :])
    assert learner(*(word.replace("NEW", "longer") for word in remedy[1:]), "--num_epochs=1")[0] == 0
    command = next(line for line in out.splitlines() if line.startswith("by itself: "))
    assert learner(*shlex.split(command)[3:])[0] == 0
    (alone,) = losses("run-sweep-best").values()
    np.testing.assert_allclose(alone, losses("run-sweep")["001-lr=0.05"], rtol=1e-5)
    code, _, err = learner("fit", "line.yaml", "--halving.monitor=train/Loss")
    assert (code, "use learner sweep CONFIG --together" in err, "population(lr" in err) == (2, True, False)


@pytest.mark.full
def test_exploit_prints_no_command_for_the_best_member(learner, write):
    """After the first epoch, the member with rate 0 continues from the other one with half of its rate."""
    words = ("sweep", write(num_epochs=2), "--lr=0.0,0.05", "--exploit.monitor=train/Loss", "--exploit.part=0.5")
    code, out, err = learner(*words, "--exploit.factors=[0.5]")
    assert (code, err, out.count("by itself: ")) == (0, "", 0)
    assert json.loads(learner(*words, "--exploit.factors=[0.5]", "--json")[1])["command"] is None


@pytest.mark.full
def test_population_resumes(learner, write):
    path = write(num_epochs=20, train="mymodule.Pressing")
    words = ("sweep", path, "--lr=0.1,0.05", "--together")
    code, _, err = learner(*words)
    assert (code, "the same command resumes the sweep" in err) == (130, True)
    assert read_summary(Path("run-sweep"))["epochs"] < 20
    code, out, err = learner(*words)
    assert (code, err, out.count(", num_epochs, ")) == (0, "", 2)
    assert [len(values) for values in losses("run-sweep").values()] == [20, 20]


@pytest.mark.full
def test_waves_train_one_after_another(learner, write):
    """Waves that have ended are kept."""
    words = ("sweep", write(), "--lr=0.1,0.05", "--waves=2")
    code, out, err = learner(*words)
    names = ["wave-1/000-lr=0.1", "wave-2/001-lr=0.05"]
    assert (code, err, [line.split()[1] for line in out.splitlines()[:2]]) == (0, "", names)
    assert [str(run.directory) for run in find_runs(["run-sweep"])] == [f"run-sweep/{name}" for name in names]
    before = tree_of(Path("run-sweep"))
    assert learner(*words)[1].count(", kept\n") == 2
    assert tree_of(Path("run-sweep")) == before
    assert "by the same learner sweep command" in learner("resume", "run-sweep/wave-1")[2]


@pytest.mark.full
def test_names_and_limits_of_waves(write):
    path = write()
    both = plan_of(path, "--train.batch_size=4,6", "--lr=0.1,0.2", "--together", "--waves=2")
    assert [group.name.partition("/")[2] for group in both.groups] == ["wave-1", "wave-2"] * 2
    assert [group.members[0].values["lr"] for group in both.groups] == [0.1, 0.2] * 2
    assert [group.name for group in plan_of(path, "--lr=0.1,0.2", "--together", "--waves").groups] == [""]
    for words, code in (
        (["--together=never", "--waves"], "sweep-option-value"),
        (["--together", "--waves=0"], "sweep-option-value"),
        (["--together", "--waves=3"], "population-unsupported"),
        (["--waves=2", "--together", "--halving.monitor=train/Loss"], "population-unsupported"),
    ):
        with raises_code(code):
            plan_of(path, "--lr=0.1,0.2", *words)


def test_commands_refuse_a_population(learner, trained_together):
    before = tree_of(Path("run-sweep"))
    for command in ("resume", "evaluate"):
        code, _, err = learner(command, "run-sweep")
        assert (code, "resumes as a whole, by the same learner sweep command" in err) == (2, True)
        assert f"such as run-sweep/{MEMBERS[0]}" in err
    assert tree_of(Path("run-sweep")) == before


@pytest.mark.full
def test_member_is_evaluated_and_resumes_alone(learner, trained_together):
    """The member keeps the order of the data, which follows the config's seed and is shared by all members; everything
    else follows its own seed.
    """
    name = MEMBERS[1]
    member = f"run-sweep/{name}"
    config = yaml.safe_load(Path(member, "config.yaml").read_text())
    assert (config["lr"], config["seed"], config["train"]["shuffle"]) == (0.05, 7, 0)
    shown = learner("summary", member)[1]
    for command in ("learner compare run-sweep", f"learner resume {member} --num_epochs=2"):
        assert command in shown
    assert f"learner evaluate {member}\n" in shown
    last = read_history(Path(member))["valid/Loss"][-1]
    before = tree_of(Path(member))
    shown = learner("evaluate", member)[1]
    assert float(shown.split("valid/Loss")[1]) == pytest.approx(last, rel=1e-5)
    assert tree_of(Path(member)) == before
    code, out, _ = learner("resume", member, "--num_epochs=2")
    assert (code, "resumes after step" in out) == (0, True)
    assert "although" not in Path(member, "experiment.log").read_text()
    together = learner("sweep", trained_together, *TOGETHER, "--num_epochs=2", "--directory=longer")
    assert together[0] == 0
    longer = read_history(Path("longer", name))["valid/Loss"]
    np.testing.assert_allclose(read_history(Path(member))["valid/Loss"], longer, rtol=1e-5)
    steps = [read_summary(Path(place))["steps"] for place in ("run-sweep", member)]
    assert steps[1] == 2 * steps[0]
    note = f"resumed alone, after the {steps[0]} steps of the others: {name} ({steps[1]} steps)"
    shown = learner("sweep", trained_together, *TOGETHER)[1]
    assert shown.splitlines()[-1] == note
    assert "resumed alone" not in together[1]
    members = json.loads(learner("sweep", trained_together, *TOGETHER, "--json")[1])["members"]
    assert [member["steps"] for member in members] == [steps[0], steps[1], steps[0]]


@pytest.mark.full
@pytest.mark.parametrize("words", [["--together"], ["--halving.monitor=valid/Loss"], ["--on_nonfinite=stop"]])
def test_diverging_member_fails_and_does_not_end_the_others(learner, write, words):
    """The loss of the member that diverges is the lower one until then."""
    words = (write(optimizer="mymodule.explode"), "--lr=0.01,0.1", "--num_epochs=3", *words)
    _, out, _ = learner("sweep", *words)
    assert "2/2  001-lr=0.1  failed: on_nonfinite: the loss of step " in out
    assert "1 member failed; 001-lr=0.1: on_nonfinite: " in out
    code, out, _ = learner("sweep", *words, "--json")
    results = json.loads(out)
    kept, failed = results["members"]
    assert (code, results["best"], kept["failure"]) == (0, "000-lr=0.01", None)
    assert failed["best"] is None
    assert failed["failure"] == failed["stopped_by"]
    assert [row["count"] for row in results["configurations"]] == [1, 0]
    code, out, _ = learner("evaluate", failed["directory"])
    own_step = failed["steps"] if words[-1] == "--together" else 3  # otherwise, no later checkpoint is saved
    assert (code, out.splitlines()[0].partition(", ")[0]) == (0, f"checkpoint: step {own_step}")


@pytest.mark.parametrize(
    ("changes", "words", "code"),
    [
        ({"on_epoch_end": "mymodule.hook"}, ["--lr=0.1,0.2"], "population-unsupported"),
        ({}, ["--lr=0.1,0.2", "--metric_loggers=JsonLines", "--metric_loggers.path=x.jsonl"], "population-unsupported"),
        ({"model": "mymodule.of_seed"}, ["--seed=0,1"], "sweep-together-seed"),
        ({}, ["--optimizer=SGD,Adam"], "sweep-together-nothing"),
        ({}, ["--lr=0.1,-1"], "learning-rate-value"),
        pytest.param({}, ["--lr=0.1,.inf"], "config-lr-type", marks=pytest.mark.full),
        pytest.param({}, ["--seed=0,4294967296"], "population-value", marks=pytest.mark.full),
        ({"optimizer": "AdamW"}, ["--optimizer.clip_norm=1.0,2.0"], "population-key-not-numeric"),
    ],
)
def test_unsupported_populations_are_refused_before_writing(write, importable, changes, words, code):
    path = write(**changes)
    with pytest.raises(LearnerError) as raised:
        plan_of(path, *words, "--together")
    assert code in raised.value.codes, raised.value
    assert {path.name for path in importable.iterdir()} <= {"line.yaml", "mymodule.py", "__pycache__"}


@pytest.mark.full
def test_directory_of_a_joint_sweep_refuses_an_ordinary_one(trained_together):
    plan_of(trained_together, *TOGETHER).open()
    with raises_code("sweep-different", "sweep.together was true and is -"):
        plan_of(trained_together, *TOGETHER[:-1]).open()


@pytest.mark.full
def test_joint_sweep_cannot_grow(trained_together):
    longer = [f"{option},{value}" for option, value in zip(TOGETHER[:3], (0.2, 8, 0.9), strict=True)]
    with raises_code("sweep-different", "3 members", "has 4"):
        plan_of(trained_together, *longer, *TOGETHER[3:]).open()


@pytest.mark.full
def test_joint_sweep_gets_more_epochs(learner, trained_together):
    before = losses("run-sweep")
    assert learner("sweep", trained_together, *TOGETHER, "--num_epochs=2")[0] == 0
    after = losses("run-sweep")
    assert [len(values) for values in after.values()] == [2, 2, 2]
    assert {name: values[:1] for name, values in after.items()} == before


@pytest.mark.parametrize(
    ("changes", "words", "claims"),
    [
        ({}, ["--together"], True),
        ({}, ["--together", "--devices=1"], False),
        pytest.param({}, [], False, marks=pytest.mark.full),
        pytest.param({"devices": "all"}, ["--together=auto"], False, marks=pytest.mark.full),
    ],
)
def test_cores_are_claimed_unless_devices_are_set(write, changes, words, claims, monkeypatch):
    calls = []
    monkeypatch.setattr("learner.cli.sweeps.sweep_plan.claim_cores", lambda: calls.append(True))
    plan_of(write(**changes), "--lr=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8", *words)
    assert bool(calls) == claims


@pytest.mark.full
@pytest.mark.parametrize(("words", "devices"), [([], 2), (["--devices=1"], 1), (["--waves=2"], 2)])
def test_members_are_spread_over_the_cores(write, words, devices, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    planned = plan_of(write(), "--lr=0.1,0.2,0.3,0.4", "--together", *words)
    assert [len(planned.learner(group).definition.strategy.devices) for group in planned.groups] == [devices] * len(
        planned.groups
    )


@pytest.mark.parametrize("words", [[], ["--together"], pytest.param(["--together=auto"], marks=pytest.mark.full)])
def test_each_seed_is_checked_before_writing(write, words):
    with raises_code("config-arguments-mismatch"):
        plan_of(write(), "--seed=0,1.5,2", *words)


def test_groups_of_members():
    members = SweepSpace({"optimizer": ["SGD", "Adam"], "lr": [0.1, 0.2], "model.size": [3]}).members()
    first, second = groups_of(members, together="always")
    assert (first.name, first.traced) == ("population-0-optimizer=SGD-size=3", ["lr"])
    assert first.values == {"optimizer": "SGD", "lr": 0.1, "model.size": 3}
    assert [member.index for member in second.population([{}, {}]).members] == [0, 1]
    assert [member.name for member in second.population([{}, {}]).members] == [member.name for member in members[2:]]
    assert [group.name for group in groups_of(members)] == [member.name for member in members]
    mixed = SweepSpace({"lr": [0.1, "Cosine"], "seed": [1, 2], "optimizer.nesterov": [True]}).members()
    assert [(group.traced, group.values["lr"]) for group in groups_of(mixed, together="always")] == [
        (["seed"], 0.1),
        (["seed"], "Cosine"),
    ]
    with raises_code("sweep-together-nothing", "it has model.size.", keys=["model.size"]) as raised:
        groups_of(SweepSpace({"model.size": [1, 2]}).members(), together="always")
    assert "--lr=" not in str(raised.value)
    with raises_code("sweep-together-nothing", "constant rates can: --lr=1e-3,3e-3", keys=["lr.first"]):
        groups_of(SweepSpace({"lr.first": [0.1, 0.2]}).members(), together="always")


def test_groups_where_possible():
    """A member trains alone if no other differs from it in numbers only."""
    members = SweepSpace({"lr": [0.1, 0.2], "model.size": [1, 2]}, zipped=True).members()
    assert [(group.name, group.traced) for group in groups_of(members, together="auto")] == [
        (members[0].name, ()),
        (members[1].name, ()),
    ]
    several = SweepSpace({"model.size": [1, 2]}).members()
    assert [group.name for group in groups_of(several, together="auto")] == [member.name for member in several]
    pair = SweepSpace({"lr": [0.1, 0.2]}).members()
    assert groups_of(pair, together="auto") == groups_of(pair, together="always")


@pytest.mark.parametrize(
    ("changes", "words", "traced"),
    [
        ({}, ["--lr=0.1,0.2"], [["lr"]]),
        ({"on_epoch_end": "mymodule.hook"}, ["--lr=0.1,0.2"], [(), ()]),
        ({"model": "mymodule.of_seed"}, ["--seed=0,1", "--lr=0.1,0.2"], [()] * 4),
    ],
    ids=["possible", "a hook", "a seed"],
)
def test_members_train_together_if_possible(write, changes, words, traced):
    planned = plan_of(write(**changes), *words, "--together=auto")
    assert [group.traced for group in planned.groups] == traced
    assert bool(planned.notes) == (() in traced)
    assert [member.name.count("/") for member in planned.members] == [0] * len(planned.members)


@pytest.mark.full
def test_reason_for_separate_training_is_printed(learner, write):
    path = write(on_epoch_end="mymodule.hook", sweep={"together": "auto"})
    words = ("sweep", path, "--lr=0.1,0.2", "--member=0")
    code, out, err = learner(*words)
    assert (code, out.count(", num_epochs, ")) == (0, 1)
    assert err.startswith("learner: members train one after another: a population ")
    assert learner(*words)[1].count(", kept\n") == 1
    assert "together is 'perhaps': it needs always, auto or never" in learner("sweep", path, "--together=perhaps")[2]


def test_traced_seeds_equal_ordinary_seeds():
    alone, traced = Seeds(7), Seeds(traced=nnx.Rngs(jax.random.key(7)))
    for _ in range(2):
        assert jax.random.key_data(alone.key).tolist() == jax.random.key_data(traced.key).tolist()
    assert jax.random.key_data(alone.rngs.params()).tolist() == jax.random.key_data(traced.rngs.params()).tolist()
    with raises_code("sweep-together-seed"):
        _ = traced.seed
