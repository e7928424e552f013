"""Tests of fingerprints: resuming reports every change that affects the result."""

import functools
import json
import shutil
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerError, LossScale, Policy, ReduceOnPlateau
from learner.data import ArrayDataset, DataLoaderBuilder, stream
from learner.data.abstract_source import Source
from learner.metrics import MeanMetric
from learner.optimizers import Group, Groups
from learner.optimizers.description import describe_optimizer, optimizer_change
from learner.runs import RunReader, compare
from learner.schedules import Linear
from tests.support.archives import unpack
from tests.support.codes import raises_code
from tests.support.runs import (
    BATCH,
    STEPS,
    T,
    X,
    arrays,
    batches,
    build_line,
    build_net,
    journal_of,
    line,
    line_step,
    model_bits,
    noisy_step,
    progress_of,
    quiet,
    shuffled,
    tamper,
    valid_data,
)
from tests.support.stopped import some, stopping_at

RUN_0_1_0 = Path(__file__).parents[2] / "reliability" / "fixtures" / "run-0.1.0.tar.gz"

pytestmark = pytest.mark.usefixtures("compiled_once")

ROWS, SEED, STOP = 22, 3, STEPS + 2


def saving(directory, epochs=2):
    return quiet(directory).num_epochs(epochs).with_file_checkpointer(keep_last=9)


def loader(rows=ROWS, seed=SEED, size=BATCH):
    builder = DataLoaderBuilder().batch_size(size)
    return (builder if seed is None else builder.shuffle(seed)).build(arrays(rows))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled_once):
    """Return the directories of a run of one epoch and of a run stopped inside its second epoch, both with Adam."""
    directory = tmp_path_factory.mktemp("runs")
    adam(saving(directory / "one", 1)).fit(loader(), valid_data())
    adam(stopping_at(saving(directory / "inside"), STOP)).fit(loader(), valid_data())
    return directory


@pytest.fixture
def one(runs, tmp_path):
    return shutil.copytree(runs / "one", tmp_path / "run")


@pytest.fixture
def inside(runs, tmp_path):
    return shutil.copytree(runs / "inside", tmp_path / "run")


def adam(builder, lr=0.05):
    return build_line(builder, lr, optax.adam)


def warned(directory):
    """Return the warnings in the log, without times."""
    lines = (Path(directory) / "experiment.log").read_text().splitlines()
    return [line.partition(" WARNING ")[2] for line in lines if " WARNING " in line]


# -- data --------------------------------------------------------------------------------------------------------------

OTHER_DATA = {
    "one row fewer": (lambda: loader(rows=21), "rows 22 -> 21"),
    "one row more": (lambda: loader(rows=23), "rows 22 -> 23"),
    "another seed": (lambda: loader(seed=4), "seed 3 -> 4"),
    "not shuffled": (lambda: loader(seed=None), "order shuffled -> as given"),
    "a list": (lambda: batches(rows=ROWS), "DataLoader -> list"),
    "other batches": (lambda: loader(size=5), "rows per batch 4 -> 5"),
    "edited rows": (
        lambda: DataLoaderBuilder().batch_size(BATCH).shuffle(SEED).build({**arrays(ROWS), "x": -X[:ROWS]}),
        "first row",
    ),
    "one edited row": (
        lambda: DataLoaderBuilder().batch_size(BATCH).shuffle(SEED).build({**arrays(ROWS), "t": edited(T[:ROWS])}),
        "some of its rows differ",
    ),
}


def edited(targets):
    """Return targets of which one differs that is not in the first batch."""
    targets, row = targets.copy(), loader().order(1)[BATCH]
    targets[row] += 1
    return targets


@pytest.mark.full
@pytest.mark.parametrize("what", some(OTHER_DATA, ("one row fewer", "another seed")))
def test_other_data_inside_an_epoch_is_refused(inside, what):
    make, text = OTHER_DATA[what]
    with pytest.raises(LearnerError) as error:
        adam(saving(inside).resume()).fit(make(), valid_data())
    assert text in str(error.value)
    assert "resume(allow='data') or --resume.allow=data" in str(error.value)
    assert not any(entry.get("resumed") for entry in journal_of(inside))


@pytest.mark.parametrize("before", [True, False])
def test_rows_of_each_process_are_not_compared_with_those_of_one(tmp_path, monkeypatch, before):
    """Each of several processes with its own data knows only its own rows."""
    directory, own = tmp_path / "run", property(lambda source: True)
    with monkeypatch.context() as patch:
        if before:
            patch.setattr(Source, "differs", own)
        adam(saving(directory, 1)).fit(loader(), valid_data())
    if not before:
        monkeypatch.setattr(Source, "differs", own)
    adam(saving(directory).resume()).fit(loader(), valid_data())
    assert warned(directory) == []
    adam(saving(directory).resume().num_epochs(4)).fit(loader(seed=4), valid_data())
    (line,) = warned(directory)
    assert "seed 3 -> 4" in line
    assert "None" not in line


class Unsized:
    """A loader of PyTorch's form, whose dataset may have no length."""

    batch_size = 4

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(batches())


def test_rows_of_an_iterable_whose_dataset_gets_a_length_are_compared(tmp_path):
    directory = tmp_path / "run"
    adam(saving(directory, 1)).fit(Unsized(object()), valid_data())
    adam(saving(directory).resume()).fit(Unsized([0] * 64), valid_data())
    assert any("rows None -> 64" in line for line in warned(directory))


@pytest.mark.full
@pytest.mark.parametrize("what", some(["edited rows", "one edited row", "one row more", "a list"], ("one edited row",)))
def test_other_data_between_epochs_is_one_warning(one, what):
    make, text = OTHER_DATA[what]
    result = adam(saving(one).resume()).fit(make(), valid_data(size=5))
    (line,) = warned(one)
    assert text in line
    assert "valid data: " in line
    assert "rows per batch 10 -> 5" in line
    assert result.summary["epochs"] == 2


@pytest.mark.full
def test_missing_validation_data_is_one_warning(one):
    build_line(saving(one).resume(), 0.05, optax.adam).fit(loader())
    (line,) = warned(one)
    assert "valid data: DataLoader -> none" in line


@pytest.mark.full
def test_other_data_inside_an_epoch_can_be_allowed(inside):
    result = adam(saving(inside).resume(allow="data")).fit(loader(seed=4), valid_data())
    assert result.summary["steps"] == 2 * STEPS
    assert "seed 3 -> 4" in warned(inside)[0]


@pytest.mark.full
def test_another_batch_of_a_list_inside_an_epoch_is_refused(tmp_path):
    adam(stopping_at(saving(tmp_path / "run"), STOP)).fit(batches())
    *others, last = batches()
    with raises_code("resume-differs", "some of its rows differ"):
        adam(saving(tmp_path / "run").resume()).fit([*others, {**last, "t": last["t"] + 1}])


@pytest.mark.full
def test_an_iterable_with_another_first_row_is_one_warning(tmp_path):
    """The iterable may shuffle without a seed, and resuming may then skip the wrong batches."""

    def streams(sign):
        return lambda: ({**batch, "x": np.float32(sign) * batch["x"]} for batch in batches())

    adam(stopping_at(saving(tmp_path / "run"), STOP)).fit(streams(1), valid_data())
    adam(saving(tmp_path / "run").resume()).fit(streams(-1), valid_data())
    assert sum("first row differs" in line for line in warned(tmp_path / "run")) == 1


class Items:
    """A dataset of items that are read one by one, with random numbers of a spread."""

    def __init__(self, sign=1, spread=0.0):
        self.sign, self.spread, self.rng = sign, spread, np.random.default_rng()

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        noise = self.spread * self.rng.normal()
        return {"x": np.float32(self.sign * X[index] + noise), "t": T[index]}


class InEpochs:
    """An iterable whose order is a function of the epoch, and which is augmented at random."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        noise = np.random.default_rng().normal()
        return ({**batch, "x": batch["x"] + np.float32(noise)} for batch in batches()[:: -1 if self.epoch else 1])


class Shuffled:
    """An iterable in an order of its random generator, whose state is part of checkpoints."""

    def __init__(self):
        self.rng = np.random.default_rng()

    def __iter__(self):
        return iter([batches()[index] for index in self.rng.permutation(STEPS)])


def drawn():
    """Return batches in an order of a random generator that no checkpoint contains."""
    return (batches()[index] for index in np.random.default_rng().permutation(STEPS))


def loaded(items, workers=0):
    return DataLoaderBuilder().batch_size(BATCH).num_workers(workers).build(items)


@pytest.mark.full
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lambda sign: loaded(Items(sign)), ["first row differs"]),
        (lambda sign: [{**batch, "x": sign * batch["x"]} for batch in batches()], ["first row differs"]),
        (lambda sign: loaded(Items()), []),
        (lambda sign: loaded(Items(spread=1.0)), ["items of the train data (Items) differ when they are read again"]),
        (lambda sign: loaded(Items(spread=1.0), workers=1), []),
        (lambda sign: drawn, []),
        (lambda sign: stream(drawn, batched=True), []),
        (lambda sign: InEpochs(), []),
        (lambda sign: Shuffled(), []),
    ],
    ids=["items", "list", "same", "augmented", "workers", "function", "stream", "iterable", "shuffled"],
)
def test_another_first_row_between_epochs_is_one_warning(tmp_path, data, expected):
    """Data that differs each time it is read on purpose has a warning of its own, or none."""
    adam(saving(tmp_path / "run", 1)).fit(data(1), valid_data())
    before = warned(tmp_path / "run")
    adam(saving(tmp_path / "run").resume()).fit(data(-1), valid_data())
    lines = warned(tmp_path / "run")[len(before) :]
    assert [text in line for text, line in zip(expected, lines, strict=True)] == [True] * len(expected)


# -- what the steps compute --------------------------------------------------------------------------------------------


def scaled_step(model, batch):
    return line_step(model, {**batch, "t": 2 * batch["t"]})


def build(builder, optimizer=optax.adam, lr=0.05, step=line_step, valid_step=line_step):
    return builder.build(line(), optimizer, lr, train_step=step, valid_step=valid_step)


OTHER_PROGRAMS = {
    "b1": (lambda b: build(b, functools.partial(optax.adam, b1=0.5)), "optimizer: adam(b1=0.9) -> adam(b1=0.5)"),
    "adamw": (lambda b: build(b, optax.adamw), "optimizer: adam -> adamw"),
    "hidden b1": (lambda b: build(b, lambda lr: optax.adam(lr, b1=0.5)), "optimizer: adam -> <lambda>"),
    "rate": (lambda b: build(b, lr=0.01), "learning rate: 0.05 -> 0.01"),
    "schedule": (lambda b: build(b, lr=Linear(0.05, over=99)), "learning rate: 0.05 -> Linear("),
    "loss": (lambda b: build(b, step=scaled_step), "train step: it computes something else"),
    "rng": (lambda b: build(b, step=noisy_step), "train step: it computes something else"),
    "validation": (lambda b: build(b, valid_step=scaled_step), "valid step: it computes something else"),
    "accumulation": (lambda b: build(b.grads_accumulation(2)), "micro-batches per step: 1 -> 2"),
    "precision": (lambda b: build(b.precision("bfloat16")), "precision: float32 -> bfloat16"),
    "several": (
        lambda b: build(b, functools.partial(optax.adam, b1=0.5), Linear(0.05, over=99), scaled_step),
        "optimizer: adam(b1=0.9) -> adam(b1=0.5)",
        "learning rate: 0.05 -> Linear(",
        "train step: it computes something else",
    ),
}


@pytest.mark.parametrize("what", some(OTHER_PROGRAMS, ("several",)))
def test_another_program_is_one_warning(one, what):
    make, *texts = OTHER_PROGRAMS[what]
    result = make(saving(one).resume(allow="optimizer")).fit(loader(), valid_data())
    lines = [line for line in warned(one) if "allow" not in line and "new state" not in line]
    assert [sum(text in line for line in lines) for text in texts] == [1] * len(texts)
    other = "computes something else"
    assert sum(other in line for line in lines) == sum(other in text for text in texts)
    assert result.summary["epochs"] == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("scales", "step", "others"),
    [
        ((8.0, 16.0), line_step, 0),
        ((8.0, 16.0), scaled_step, 1),
        ((None, 16.0), scaled_step, 1),  # the default of float16
    ],
    ids=["scale", "scale and loss", "default and loss"],
)
def test_another_loss_scale_does_not_hide_another_step(tmp_path, scales, step, others):
    before, now = (Policy(compute="float16", loss_scale=start and LossScale(start)) for start in scales)
    build(saving(tmp_path / "run", 1).precision(before)).fit(loader())
    build(saving(tmp_path / "run").precision(now).resume(), step=step).fit(loader())
    (line,) = warned(tmp_path / "run")
    assert "loss scale from 16" in line
    assert line.count("train step: it computes something else") == others


@pytest.mark.full
def test_an_added_loss_scale_is_one_change(tmp_path):
    """The state contains it, so that the traced steps differ."""
    build(saving(tmp_path / "run", 1).precision("bfloat16")).fit(loader())
    scaled = Policy(compute="bfloat16", loss_scale=LossScale(8.0))
    build(saving(tmp_path / "run").precision(scaled).resume()).fit(loader())
    (line,) = warned(tmp_path / "run")
    assert "loss scale from 8" in line
    assert "computes something else" not in line


def with_rule(factor):
    """Return a step with a custom differentiation rule, which does not affect the forward pass."""

    @jax.custom_vjp
    def scaled(x):
        return x

    scaled.defvjp(lambda x: (x, None), lambda _, g: (factor * g,))

    def step(model, batch):
        return line_step(jax.tree.map(scaled, model), batch)

    return step


@pytest.mark.full
def test_another_rule_of_differentiation_is_one_warning(tmp_path):
    build(saving(tmp_path / "run", 1), step=with_rule(1.0)).fit(loader())
    shutil.copytree(tmp_path / "run", tmp_path / "same")
    build(saving(tmp_path / "same").resume(), step=with_rule(1.0)).fit(loader())
    assert warned(tmp_path / "same") == []
    build(saving(tmp_path / "run").resume(), step=with_rule(0.5)).fit(loader())
    (text,) = warned(tmp_path / "run")
    assert "train step: it computes something else" in text


class Scaled(MeanMetric):
    name = "Scaled"
    higher_is_better = None
    fields = ("targets",)

    def __init__(self, scale):
        self.scale = scale

    def update(self, state, output, info):
        return state.add(self.scale * output.targets[:, 0], jnp.ones(output.targets.shape[0], bool))


SETTINGS = {
    "a metric": (
        lambda b, x: build(b.metrics(Scaled(x))),
        (1.0, 100.0),
        "train/Scaled: scale 1.0 -> 100.0; valid/Scaled: scale 1.0 -> 100.0",
    ),
    "a plateau": (
        lambda b, x: build(b, lr=ReduceOnPlateau(0.1, patience=x)),
        (10, 0),
        "'patience': 10",
    ),
    "a group's schedule": (
        lambda b, x: build(b, Groups(optax.adam, [Group("w", lr=Linear(0.1, over=x))])),
        (40, 80),
        "the schedule of group 0 of the optimizer: Linear",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("what", some(SETTINGS, ("a metric",)))
def test_other_settings_are_one_warning(tmp_path, what):
    make, (before, now), text = SETTINGS[what]
    make(saving(tmp_path / "run", 1), before).fit(loader(), valid_data())
    make(saving(tmp_path / "run").resume(), now).fit(loader(), valid_data())
    (line,) = warned(tmp_path / "run")
    assert text in line
    assert "computes something else" not in line


def injected(b1=0.9, factor=1.0, schedule=0.05):
    """Return an optimizer that stores a constant, a number of the rate and a schedule in its state."""
    adam = optax.inject_hyperparams(optax.adam)
    return lambda lr: optax.chain(adam(lr * factor, b1=b1), optax.inject_hyperparams(optax.scale)(lambda n: schedule))


KEPT = "keeps the numbers of the checkpoint"


@pytest.mark.full
@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, []), ({"b1": 0.5}, [True]), ({"factor": 0.5}, [False]), ({"schedule": 0.5}, [False])],
    ids=["nothing", "b1", "factor", "schedule"],
)
def test_another_number_that_the_optimizers_state_keeps_is_one_warning(tmp_path, changed, expected):
    build(saving(tmp_path / "run", 1), injected()).fit(loader())
    build(saving(tmp_path / "run").resume(), injected(**changed)).fit(loader())
    assert [KEPT in line for line in warned(tmp_path / "run")] == expected


@pytest.mark.full
def test_augmentation_without_a_seed_is_a_warning(tmp_path):
    rng = np.random.default_rng()

    def data():
        items = ArrayDataset(arrays(ROWS)).map(lambda item: {**item, "x": item["x"] + np.float32(rng.normal())})
        return DataLoaderBuilder().batch_size(BATCH).build(items)

    adam(stopping_at(saving(tmp_path / "run"), STOP)).fit(data())
    adam(saving(tmp_path / "run").resume()).fit(data())
    (line,) = warned(tmp_path / "run")
    assert "its first row differs" in line


@pytest.mark.full
def test_a_tuple_instead_of_a_list_is_not_a_change(tmp_path):
    adam(stopping_at(saving(tmp_path / "run"), STOP)).fit(batches())
    adam(saving(tmp_path / "run").resume()).fit(tuple(batches()))
    assert warned(tmp_path / "run") == []


@pytest.mark.full
def test_a_constant_inside_a_schedule_is_compared(tmp_path):
    directory = tmp_path / "run"
    adam(saving(directory, 1), optax.cosine_decay_schedule(0.05, 12)).fit(loader(), valid_data())
    adam(saving(directory).resume(), optax.cosine_decay_schedule(0.05, 24)).fit(loader(), valid_data())
    assert "the schedule: it computes something else than when the run was saved" in warned(directory)[0]


HARMLESS = {
    "nothing": lambda b: build(b),
    "more epochs": lambda b: build(b.num_epochs(3)),
    "another dispatch": lambda b: build(b.steps_per_dispatch(2)),
    "another name": lambda b: build(b, lambda lr: optax.adam(lr), step=lambda model, batch: line_step(model, batch)),
    "a hook": lambda b: build(b.on_epoch_end(lambda info, model: None)),
    "other checkpoints": lambda b: build(b.with_file_checkpointer(every_steps=2)),
    "all": lambda b: build(
        b.num_epochs(3).steps_per_dispatch(2).on_epoch_end(lambda info, model: None),
        lambda lr: optax.adam(lr),
        step=lambda model, batch: line_step(model, batch),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("where", "what"), some([("one", "all"), *(("inside", what) for what in HARMLESS)], [("inside", "all")])
)
def test_changes_without_effect_are_not_reported(request, where, what):
    directory = request.getfixturevalue(where)
    HARMLESS[what](saving(directory).resume()).fit(loader(), valid_data())
    assert warned(directory) == []


# -- other versions ----------------------------------------------------------------------------------------------------

UNCOMPARED = "traced by other versions and not compared"


def traced_by_another(package, directory):
    """Change the version of a package in the fingerprint of the only checkpoint."""
    progress = progress_of(directory, STEPS)
    progress["fingerprint"]["programs"]["versions"][package] = "0"
    tamper(directory, STEPS, progress)


@pytest.mark.full
@pytest.mark.parametrize("package", some(["learner", "flax", "optax"], ("flax",)))
def test_steps_that_other_versions_traced_are_named(one, package):
    """They may differ only because of the versions, so a changed step cannot be reported as such."""
    traced_by_another(package, one)
    build(saving(one).resume(), step=scaled_step, valid_step=scaled_step).fit(loader(), valid_data())
    (text,) = warned(one)
    assert f"{package}: 0 -> " in text
    assert f"last bits; train step, valid step: {UNCOMPARED}" in text
    assert "computes something else" not in text


@pytest.mark.full
def test_equal_steps_of_other_versions_are_the_same(one):
    traced_by_another("optax", one)
    build(saving(one).resume()).fit(loader(), valid_data())
    (text,) = warned(one)
    assert "optax: 0 -> " in text
    assert UNCOMPARED not in text


@pytest.mark.full
def test_an_optimizer_that_other_versions_traced_is_compared_by_its_settings(one):
    traced_by_another("optax", one)
    build(saving(one).resume(), functools.partial(optax.adam, b1=0.5)).fit(loader(), valid_data())
    changed, versions = warned(one)
    assert "optimizer: adam(b1=0.9) -> adam(b1=0.5)" in changed
    assert UNCOMPARED not in versions


@pytest.mark.full
@pytest.mark.parametrize("package", ["learner", "flax"])
def test_an_added_after_step_of_other_versions(one, package):
    """Another version of `learner` may not have recorded it."""
    traced_by_another(package, one)
    clipped = saving(one).resume().after_step(lambda model: jax.tree.map(lambda x: jnp.clip(x, -1, 1), model))
    build(clipped).fit(loader(), valid_data())
    assert ("after_step: it was added or removed" in "".join(warned(one))) == (package == "flax")


# -- the length --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_fewer_epochs_than_trained_inside_an_epoch(inside):
    adam(saving(inside, 1).resume()).fit(loader(), valid_data())
    assert warned(inside) == ["num_epochs is 1, and the run is in epoch 2 already: nothing is trained"]


@pytest.mark.full
def test_fewer_epochs_than_a_finished_run(one):
    adam(saving(one, 2).resume()).fit(loader(), valid_data())
    with pytest.warns(UserWarning, match="num_epochs is 1, and the run has 2 already: nothing is trained"):
        result = adam(saving(one, 1).resume()).fit(loader(), valid_data())
    assert len(result.history["train/Loss"]) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adam(saving(one, 2).resume()).fit(loader(), valid_data())


# -- older checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_of_version_0_1_0_resumes_inside_an_epoch(tmp_path):
    """The checkpoint has no fingerprint. It was written on another machine, so results are compared within float
    tolerance and the order of the data exactly.
    """
    unpack(RUN_0_1_0, tmp_path)
    left = build_net(saving(tmp_path / "run", 3).resume()).fit(shuffled(rows=ROWS), valid_data())
    whole = build_net(saving(tmp_path / "whole", 3)).fit(shuffled(rows=ROWS), valid_data())
    assert left.summary["steps"] == whole.summary["steps"] == 3 * STEPS
    assert left.history["train/Last Row"] == whole.history["train/Last Row"]
    np.testing.assert_allclose(left.history["train/Loss"], whole.history["train/Loss"], rtol=1e-4)
    # Checkpoints of that version contain batch sizes, which are compared.
    unpack(RUN_0_1_0, tmp_path / "other")
    other = DataLoaderBuilder().batch_size(5).shuffle(3).build(arrays(ROWS))
    with raises_code("resume-differs", "4", "5"):
        build_net(saving(tmp_path / "other" / "run", 3).resume()).fit(other, valid_data())


@pytest.mark.full
@pytest.mark.parametrize("part", some(["data", "settings", "programs"], {"settings"}))
def test_malformed_fingerprints(one, part):
    """With any value in a part, the run resumes or raises one error."""
    for value in ({}, {"train": 3, "hashes": [], "schedules": 5}, None):
        directory = shutil.copytree(one, one.parent / f"{part}-{value is None}-{value == {}}")
        progress = progress_of(directory, STEPS)
        progress["fingerprint"][part] = value
        tamper(directory, STEPS, progress)
        if value is None:
            with raises_code("resume-progress-malformed", fields="fingerprint"):
                adam(saving(directory).resume()).fit(loader(), valid_data())
        else:
            assert adam(saving(directory).resume()).fit(loader(), valid_data()).summary["epochs"] == 2


# -- other uses --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_control_characters_of_a_checkpoint_are_escaped(one):
    progress = progress_of(one, STEPS)
    progress["fingerprint"]["settings"]["seed"] = "\x1b[31m\n" + "y" * 5000
    tamper(one, STEPS, progress)
    adam(saving(one).resume()).fit(loader(), valid_data())
    (line,) = warned(one)
    assert "\x1b" not in line
    assert len(line) < 1000


def test_the_journal_contains_the_fingerprint(runs):
    first, second = (journal_of(runs / name)[0]["fingerprint"] for name in ("one", "inside"))
    assert first == second == json.loads(json.dumps(first))
    assert progress_of(runs / "one", STEPS)["fingerprint"] == first


@pytest.mark.full
def test_different_steps_with_one_config_have_different_fingerprints(runs, tmp_path):
    build(saving(tmp_path / "other", 1), step=scaled_step).fit(loader(rows=21), valid_data())
    comparison = compare([RunReader(runs / "one"), RunReader(tmp_path / "other")])
    one, other = comparison.rows
    assert (one["data.train.rows"], other["data.train.rows"]) == (22, 21)
    assert one["train step"] != other["train step"]
    same = compare([RunReader(runs / "one"), RunReader(runs / "inside")])
    assert "train step" not in same.settings
    assert not any(key.startswith("data.") for key in same.settings)


def test_default_arguments_are_included_in_settings():
    described = describe_optimizer(functools.partial(optax.adamw, weight_decay=0.5))
    assert described["name"] == "adamw"
    assert described["settings"]["weight_decay"] == "0.5"
    assert described["settings"]["b2"] == "0.999"
    assert optimizer_change(described, describe_optimizer(optax.adamw)) == (
        "adamw(weight_decay=0.5) -> adamw(weight_decay=0.0001)"
    )


@pytest.mark.full
def test_comparing_does_not_change_the_model(inside, tmp_path):
    """With the same settings, the resumed run ends like an uninterrupted one."""
    left = adam(saving(inside).resume()).fit(loader(), valid_data())
    whole = adam(saving(tmp_path / "whole")).fit(loader(), valid_data())
    assert model_bits(left.model) == model_bits(whole.model)
    assert jax.tree.structure(left.model) == jax.tree.structure(whole.model)
