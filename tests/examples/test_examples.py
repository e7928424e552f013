"""Train a shortened version of every example, and check its results."""

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.metrics import balanced_accuracy_score, confusion_matrix
from sklearn.neighbors import KNeighborsClassifier

from learner import Optimizer, load_checkpoint, trainable_params
from learner.cli.main import main
from learner.data import digits
from learner.errors import LearnerError
from learner.runs.history import read_history
from learner.strategies import Sharded, fsdp
from learner.util.trees import named_leaves
from tests.support.runs import model_bits
from tests.support.stopped import some

ROOT = Path(__file__).parents[2]
WITH_CONFIG = {  # by config: arguments that shorten it on the command line, and the example with its arguments
    "digits": (["--num_epochs=1"], {"num_epochs": 1}),
    "digits_cnn": (["--num_epochs=1"], {"num_epochs": 1}),
    "regression": (["--num_epochs=2"], {"num_epochs": 2}),
    "charlm": (
        ["--num_epochs=1", "--train.dataset.max_rows=40", "--valid.dataset.max_rows=40"],
        {"num_epochs": 1, "max_rows": 40},
    ),
}
CLASSIFIERS = ["equinox_model", "linen_model", "pytree"]
OTHERS = ["from_torch", "gan", "lora", "own_metric", "population"]
LOOPS = ["custom_learner", "custom_loop", "distill", "finetune", "multiple_optimizers", "transformer_seq2seq"]
NO_SCRIPTS = {"__init__", "models", "own_module"}

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def as_a_user(tmp_path, monkeypatch):
    """Work in an empty directory next to the examples, with JAX's default settings."""
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def example(name):
    return importlib.import_module(f"examples.{name}")


def test_no_example_is_left_out():
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - NO_SCRIPTS
    assert scripts == {*WITH_CONFIG, *CLASSIFIERS, *OTHERS, *LOOPS}
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == set(WITH_CONFIG)


@pytest.mark.parametrize("name", some(WITH_CONFIG, ()))
def test_a_config_and_its_example_are_the_same_run(name, capsys):
    words, arguments = WITH_CONFIG[name]
    assert main(["fit", f"configs/{name}.yaml", *words]) == 0
    result = example(name).main("runs/example", **arguments)
    theirs = read_history(f"runs/{name}")
    assert dict(result.history) == dict(theirs)
    assert len(theirs["valid/Loss"]) >= 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", some(CLASSIFIERS, ()))
def test_two_epochs_learn_most_digits(name):
    result = example(name).main("runs/example", num_epochs=2)
    accuracy = result.history["valid/Accuracy"]
    assert len(accuracy) == 2
    assert accuracy[-1] > 0.8
    assert result.best_model is not None
    if name == "equinox_model":
        (network, state), (first, before) = result.model, first_equinox()
        assert network.norm.inference
        assert not first.norm.inference
        assert state.get(network.norm.batch_counter) == before.get(first.norm.batch_counter) + 90
    if name == "linen_model":
        mean = result.model.variables["batch_stats"]["BatchNorm_0"]["mean"]
        assert np.abs(mean).max() > 0.1  # it is 0 at first
        assert not result.model.train


def first_equinox():
    import equinox as eqx

    return eqx.nn.make_with_state(example("equinox_model").Network)(jax.random.key(0))


@pytest.mark.full
def test_the_transformer_is_the_same_where_it_is_split():
    module = example("charlm")
    strategy = Sharded({"data": 4, "model": 2}, [module.TENSOR_PARALLEL, fsdp()])
    split, whole = (
        module.main(f"runs/{i}", 1, max_rows=64, strategy=option) for i, option in enumerate((strategy, None))
    )
    assert split.history["valid/Loss"] == pytest.approx(whole.history["valid/Loss"], rel=1e-4)


@pytest.mark.full
def test_own_metrics_are_those_of_scikit_learn():
    module = example("own_metric")
    result = module.main("runs/example", num_epochs=1)
    rows = digits("valid").arrays
    predicted = np.asarray(result.model(rows["image"])).argmax(-1)
    expected = balanced_accuracy_score(rows["label"], predicted)
    assert result.history["valid/Balanced Accuracy"][-1] == pytest.approx(expected, abs=1e-6)
    wrong = confusion_matrix(rows["label"], predicted, labels=range(10)) * (1 - np.eye(10, dtype=int))
    text = result.history["valid/Most Confused"][-1]
    label, taken_for, times = (int(word) for word in text.replace(",", "").split() if word.isdigit())
    assert times == wrong.max() == wrong[label, taken_for]
    assert module.Confusion(3).text(np.eye(3)) == "none"


@pytest.mark.full
def test_generator_learns_the_circle():
    module = example("gan")
    result = module.main("runs/example")
    errors = result.history["valid/Mean Absolute Error"]
    assert errors[0] > 0.2
    assert min(errors) < 0.12
    points = module.apply(result.model["generator"], jax.random.normal(jax.random.key(7), (500, module.NOISE)))
    angles = np.arctan2(points[:, 1], points[:, 0])
    assert np.histogram(angles, bins=4, range=(-np.pi, np.pi))[0].min() > 25  # in all directions
    assert set(result.history) == {"train/Loss", "train/Critic Loss", "valid/Mean Absolute Error", "valid/Loss"}


@pytest.mark.full
def test_a_loop_by_hand_ends_with_the_bits_of_fit(capsys):
    """The loop is stopped after an epoch, and resumes."""
    module = example("custom_loop")
    module.main("runs/hand", num_epochs=1)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" loss")[0] for line in printed[:2]] == ["epoch 1 iteration  1", "epoch 1 iteration  2"]
    assert len(printed) == 45 + 1
    model, metrics = module.main("runs/hand", num_epochs=2)
    assert len(capsys.readouterr().out.splitlines()) == 45 + 1
    result = module.build("runs/fit", 2).fit(*module.loaders())
    assert model_bits(model) == model_bits(result.model)
    ours, theirs = read_history("runs/hand"), result.history
    assert ours.keys() == theirs.keys()
    for key in ours:
        np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-6, err_msg=key)
    for name, value in metrics.items():
        assert np.float32(value) == np.float32(result.history[f"valid/{name}"][-1])


@pytest.mark.full
def test_each_part_has_its_rate(monkeypatch):
    """One step of gradient descent shows the factors: every parameter moves by its own times the rate."""
    module = example("multiple_optimizers")
    monkeypatch.setattr(module, "opt", Optimizer(optax.sgd))
    model = module.Network(nnx.Rngs(0))
    states = {name: module.opt.init(part) for name, part in module.parts(model)}
    batch = {name: x[:32] for name, x in digits("train").arrays.items()}
    grads = nnx.grad(lambda model: module.step(model, batch).loss)(model)
    after, _, _ = jax.jit(module.train_step.__wrapped__)(model, states, 0.5, batch)
    factors = {"conv1.kernel": 2.0, "conv2.kernel": 4.0, "head.kernel": 1.0}
    factors |= {f"{layer}.bias": 0.1 for layer in ("conv1", "conv2", "head")}
    before, now, by = (named_leaves(trainable_params(tree)) for tree in (model, after, grads))
    assert set(before) == set(factors)
    for name, factor in factors.items():
        np.testing.assert_allclose(now[name], before[name] - 0.5 * factor * by[name], rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_several_optimizers_learn_most_digits():
    assert example("multiple_optimizers").main(num_epochs=5)[1] > 0.85


@pytest.mark.full
def test_codes_without_labels_separate_digits(monkeypatch):
    module = example("custom_learner")
    result = module.main("runs/example", num_epochs=2)
    codes = {}
    for split in ("train", "valid"):
        rows = digits(split).arrays
        codes[split] = np.asarray(result.model(rows["image"].reshape(-1, 64))), rows["label"]
    nearest = KNeighborsClassifier(1, algorithm="brute").fit(*codes["train"])
    scores = result.history["custom/Neighbours"]
    assert scores[-1] == pytest.approx(nearest.score(*codes["valid"]), abs=2 / 360)
    assert len(scores) == 2
    assert scores[-1] > 0.85
    assert {"train/Filled", "train/Together", "valid/Loss"} <= set(result.history)
    monkeypatch.setattr(module.SelfSupervisedLearner, "enough", 0.5)
    result = module.main("runs/stopped", num_epochs=2)
    assert result.stopped_by.endswith("of the neighbours are right")
    assert len(result.history["custom/Neighbours"]) == 1


@pytest.mark.full
def test_backbone_is_first_frozen_then_trained():
    module = example("finetune")
    head, everything = module.main("runs/example", num_epochs=2)
    loaded = {
        f"backbone{path.removeprefix('encoder')}": x
        for path, x in named_leaves(
            trainable_params(load_checkpoint("runs/example/pretrained", "best", module.Pretrained(nnx.Rngs(5))).model)
        ).items()
        if path.startswith("encoder")
    }
    frozen, tuned = (named_leaves(trainable_params(result.model)) for result in (head, everything))
    assert len(loaded) == 4
    for name, x in loaded.items():
        np.testing.assert_array_equal(frozen[name], x, err_msg=name)
        assert np.abs(tuned[name] - x).max() > 0
    assert head.history["valid/Accuracy"][-1] > 0.7
    assert everything.history["valid/Accuracy"][-1] > head.history["valid/Accuracy"][-1]
    mu = load_checkpoint("runs/example/head", "latest").opt_state
    assert {name.split("mu.")[1] for name in mu if "mu." in name} == {"head.bias", "head.kernel"}


@pytest.mark.full
def test_student_learns_and_teacher_is_unchanged():
    taught, result = example("distill").main("runs/example", num_epochs=6)
    assert result.history["valid/Accuracy"][-1] > 0.8
    assert model_bits(result.model.teacher) == model_bits(taught.model)
    assert result.history["train/Loss"][-1] < result.history["train/Loss"][0] / 1.5


@pytest.mark.full
def test_strings_are_reversed_for_any_padding():
    module = example("transformer_seq2seq")
    model = module.main("runs/example").model
    rows = module.strings(200, seed=2)
    logits = np.asarray(model(rows["source"], rows["given"]))
    counts = rows["target"] != module.PAD
    assert (logits.argmax(-1) == rows["target"])[counts].mean() > 0.9
    assert module.turned_round(model, "271828") == "828172"
    model.embed.embedding[...] = model.embed.embedding[...].at[module.PAD].set(1000.0)
    changed = np.asarray(model(rows["source"], rows["given"]))
    np.testing.assert_allclose(changed[counts], logits[counts], rtol=1e-3, atol=1e-3)


@pytest.mark.full
def test_config_names_a_custom_module(capsys):
    assert main(["fit", "examples/own_module.yaml", "--num_epochs=4", "--model.width=32"]) == 0
    history = read_history("runs/own_module")
    assert history["valid/Accuracy"][-1] > 0.6
    assert 0.5 < history["valid/Confidence"][-1] <= 1
    assert main(["evaluate", "runs/own_module"]) == 0
    assert "valid/Confidence" in capsys.readouterr().out


@pytest.mark.full
def test_an_example_is_a_program():
    command = [sys.executable, "-W", "error", "-m", "examples.pytree"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(read_history("runs/pytree")["valid/Accuracy"]) >= 0.97


@pytest.mark.full
def test_low_rank_matrices_learn_a_new_task():
    base, adapted = example("lora").main("runs/example", num_epochs=8)
    assert base.history["valid/Accuracy"][-1] > 0.9
    accuracy = adapted.history["valid/Accuracy"]
    assert accuracy[0] < 0.3
    assert accuracy[-1] > accuracy[0] + 0.3
    for part in ("hidden", "out"):  # the original parameters are unchanged
        for name in ("kernel", "bias"):
            one, other = (getattr(getattr(run.model, part), name)[...] for run in (base, adapted))
            np.testing.assert_array_equal(one, other)
    log = Path("runs/example/adapted/experiment.log").read_text()
    assert "2344 parameters in 4 arrays" in log
    assert "frozen: 19210 parameters in 4 arrays" in log


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch_models_give_equal_outputs():
    differences = example("from_torch").main(steps=20)
    assert differences.keys() == {"mlp", "cnn"}
    assert max(differences.values()) < 1e-4


def test_missing_pytorch_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LearnerError, match=r"this example needs .*: pip install torch safetensors"):
        example("from_torch").main()


@pytest.mark.full
def test_a_population(capsys):
    result = example("population").main(num_epochs=5)
    assert len(result) == 6
    assert [row.count for row in result.summary("valid/Accuracy")] == [3, 3]
    assert result.best("valid/Accuracy").values["lr"] == 3e-3
    assert max(result.best("valid/Accuracy").history["valid/Accuracy"]) > 0.9
    assert "95 % interval" in capsys.readouterr().out
