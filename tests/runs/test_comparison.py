"""Tests of tables that compare runs."""

import dataclasses
import functools
import json
import sys
import weakref

import optax
import pytest

from learner.optimizers import Group, Groups
from learner.optimizers.configs import AdamW
from learner.optimizers.description import describe_optimizer
from learner.runs import compare, each_run, find_runs
from learner.runs.difference import differing
from tests.support.codes import raises_code
from tests.support.written import write_run


def config(rate, extra=""):
    return f"directory: d{rate}\nseed: 0\nlr: {rate}\nmodel: {{class_path: M, init_args: {{width: 8}}}}\n{extra}"


@pytest.fixture
def runs(tmp_path):
    """Return three runs with a metric whose greatest value is best."""
    for name, rate, score in (("a", 0.1, [0.5, 0.7]), ("b", 0.2, [0.9, 0.8]), ("c", 0.1, [float("nan")])):
        write_run(
            tmp_path / name, {"valid/Score": score, "valid/Loss": [1.0], "train/Loss": [2.0]}, config=config(rate)
        )
        facts = {"metrics": {"valid/Score": {"higher_is_better": True, "unit": ""}, "valid/Loss": {}, "train/Loss": {}}}
        (tmp_path / name / "summary.json").write_text(json.dumps(facts))
    return find_runs([tmp_path])


def test_settings_that_differ_are_columns(runs):
    comparison = compare(runs)
    assert comparison.settings == ("lr",)  # not the directory
    assert [row["lr"] for row in comparison.rows] == [0.1, 0.2, 0.1]
    assert comparison.metrics == ("valid/Loss", "valid/Score")
    assert comparison.rows[1]["valid/Score best"] == 0.9
    assert comparison.rows[1]["valid/Score best epoch"] == 1
    assert comparison.rows[1]["valid/Score last"] == 0.8


def test_table_of_runs(runs):
    lines = compare(runs[:2], ["Score"]).lines()
    assert lines[0].split() == ["run", "status", "epochs", "steps", "time", "lr", "valid/Score", "epoch", "last"]
    assert lines[1].split() == ["a", "ended", "2", "4", "21.0", "s", "0.1", "0.7", "2", "0.7"]
    by_directory = compare([str(run.directory) for run in runs[:2]], ["Score"])
    assert str(by_directory).splitlines() == lines
    assert lines[1] in by_directory._repr_html_()
    assert str(compare(runs[:2], "Score")).splitlines() == lines
    assert compare(runs[:2], None).lines() == compare(runs[:2]).lines()


def test_a_single_run_needs_no_list(runs):
    directory = runs[0].directory
    alone = compare([directory]).lines()
    assert compare(directory).lines() == compare(str(directory)).lines() == compare(runs[0]).lines() == alone


def test_numbers_of_hooks_are_shown_if_they_were_monitored(tmp_path):
    """Only these have a direction."""
    for name in "ab":
        run = write_run(tmp_path / name, {"valid/Loss": [1.0], "custom/FID": [3.0, 2.0], "custom/Norm": [1.0, 1.0]})
        metrics = {"custom/FID": {"higher_is_better": False, "unit": ""}, "custom/Norm": {}, "valid/Loss": {}}
        (run / "summary.json").write_text(json.dumps({"metrics": metrics}))
    comparison = compare(find_runs([tmp_path]))
    assert comparison.metrics == ("valid/Loss", "custom/FID")
    assert comparison.rows[0]["custom/FID best"] == 2.0


def test_stopped_run_has_not_ended(tmp_path):
    write_run(tmp_path / "a", ending="num_epochs")
    write_run(tmp_path / "b", ending="ctrl-c")
    comparison = compare(find_runs([tmp_path]))
    assert [row["status"] for row in comparison.rows] == ["ended: num_epochs", "stopped: ctrl-c"]
    assert [line.split()[1] for line in comparison.lines()[1:]] == ["ended", "stopped"]


def test_names_of_settings_do_not_start_with_an_index(tmp_path):
    write_run(tmp_path / "a", config="metrics: [{class_path: Accuracy}]\nmodel: {width: 8}\n")
    write_run(tmp_path / "b", config="metrics: [{class_path: Accuracy}, {class_path: Precision}]\nmodel: {width: 16}\n")
    assert compare(find_runs([tmp_path])).lines()[0].split()[5:7] == ["width", "metrics.1"]


def test_missing_setting_equals_none(tmp_path):
    """The table shows both as a dash."""
    write_run(tmp_path / "a", config="seed: 0\n")
    write_run(tmp_path / "b", config="seed: 1\nmodel: {dropout: null}\n")
    assert compare(find_runs([tmp_path])).settings == ("seed",)


def test_table_on_narrow_terminals(runs):
    """The table first omits whole columns, then shows runs as columns, and finally counts the omitted columns."""
    comparison = compare(runs[:2])
    every = ["run", "status", "epochs", "steps", "time", "lr", "valid/Loss", "epoch", "last", "valid/Score"]
    assert comparison.lines(width=120)[0].split() == [*every, "epoch", "last"]
    assert comparison.lines(width=70)[0].split() == [name for name in every if name not in ("last", "steps", "epoch")]
    assert comparison.lines(width=40) == [
        "run               a       b",
        "status        ended   ended",
        "time         21.0 s  21.0 s",
        "lr              0.1     0.2",
        "valid/Loss        1       1",
        "valid/Score     0.7     0.9",
    ]
    assert comparison.lines(width=20)[:-1] == ["run   lr  valid/Loss", "a    0.1           1", "b    0.2           1"]
    assert comparison.lines(width=20)[-1].startswith("9 further columns: ")


def test_further_columns_include_those_that_narrow_tables_omit(tmp_path):
    """There are 13 columns: run, status, epochs, steps, time, 2 settings, and 3 of each of the 2 metrics. As the
    transposed table is too wide, 4 are shown.
    """
    for number in range(12):
        name = tmp_path / f"a-long-name-{number}"
        write_run(name, {"valid/Loss": [1.0], "valid/Score": [0.5]}, config=f"a: {number}\nb: {number}\n")
    lines = compare(find_runs([tmp_path])).lines(width=40)
    assert lines[0].split() == ["run", "status", "a", "valid/Loss"]
    assert lines[-1].startswith("9 further columns: ")


def test_the_work_of_a_comparison_is_linear_in_the_settings(tmp_path):
    """The work is counted in calls, which do not depend on the machine."""

    def calls(settings):
        for name in "abc":
            text = "".join(f"{name}{i}: {{value: {i}}}\n" for i in range(settings))
            write_run(tmp_path / f"{settings}" / name, config=text)
        runs, number = find_runs([tmp_path / f"{settings}"]), [0]
        for run in runs:
            assert run.config  # read before

        def count(frame, event, argument):
            number[0] += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            assert len(compare(runs, sort="a7.value").lines(width=100)) == 4 + 3 * settings  # transposed
        finally:
            sys.setprofile(None)
        return number[0]

    calls(10)  # also imports what is imported on use
    few, more, most = map(calls, (100, 200, 400))
    assert most - more < 3 * (more - few)  # quadratic work would make it four times


def test_requested_columns_are_shown_at_any_width(tmp_path):
    """Requested columns stay with any number of differing settings, and with too many runs for a transposed table."""
    for number in range(9):
        keys = "".join(f"key{i}: {number}\n" for i in range(30))
        write_run(tmp_path / f"run-{number}", {"valid/Loss": [1.0], "valid/Score": [0.5], "train/A": [1]}, config=keys)
    runs = find_runs([tmp_path])

    def titles(width, *args, **kwargs):
        return compare(runs, *args, **kwargs).lines(6, width)[0].split()

    assert titles(60)[:3] == ["run", "status", "key0"]
    assert titles(60)[-1] == titles(10)[-1] == "valid/Loss"
    assert titles(60, ["Score"])[-1] == titles(10, ["Score"])[-1] == "valid/Score"
    assert titles(60, sort="train/A")[-2:] == ["valid/Loss", "train/A"]
    assert "key29" in titles(60, sort="key29")
    assert "time" in titles(40, sort="time")
    assert titles(30, sort="valid/Loss last")[-2:] == ["valid/Loss", "last"]
    assert titles(30, sort="directory")[0] == "run"  # not a column of the table
    assert titles(10, ["Loss", "Score"], sort="steps") == ["run", "steps", "valid/Loss", "valid/Score"]


def test_settings_of_one_optimizer_come_last(tmp_path):
    for name, optimizer in (("a", "{class_path: AdamW, init_args: {b1: 0.9}}"), ("b", "SGD")):
        write_run(tmp_path / name, config=f"optimizer: {optimizer}\nlr: 0.{len(optimizer)}\nseed: {len(optimizer)}\n")
    assert compare(find_runs([tmp_path])).settings == ("optimizer", "lr", "seed", "optimizer.b1")


def test_long_settings_are_shortened(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, config=f"lr: {name * 50}\n")
    assert compare(find_runs([tmp_path])).lines()[1].split()[6] == "aaaaaaaaaaaa…aaaaaaaaaaa"


def test_settings_that_look_alike_when_shortened_are_whole(tmp_path):
    texts = [f"{'a' * 20}{name}{'b' * 20}" for name in "12"]
    for text in texts:
        write_run(tmp_path / text[20], config=f"lr: {text}\n")
    assert [line.split()[6] for line in compare(find_runs([tmp_path])).lines()[1:]] == texts


def write_start(directory, settings=None, config=None, optimizer=None, **train):
    """Write a run with the facts that it records at its start. Without `config`, the run comes from Python."""
    write_run(directory, config=config and json.dumps(config))
    path = directory / "journal.jsonl"
    start, *lines = map(json.loads, path.read_text().splitlines())
    facts = {"seed": 0, "learning rate": None, "schedules": {"the schedule": "Cosine(first=0.1) in 9 steps"}}
    facts |= {} if optimizer is None else {"optimizer": describe_optimizer(optimizer)}
    start |= {"config": settings, "fingerprint": {"data": {"train": train}, "settings": facts}}
    path.write_text("".join(json.dumps(line) + "\n" for line in (start, *lines)))


def test_a_seed_is_one_column(tmp_path):
    """The data's order follows it; numbers of batches follow from their size."""
    for seed in (0, 1):
        config = {"seed": seed, "train": {"batch_size": 8 + seed, "shuffle": True}}
        write_start(tmp_path / f"{seed}", config=config, seed=seed, batch_size=8 + seed, batches=3 - seed)
    assert compare(find_runs([tmp_path])).settings == ("seed", "train.batch_size")


def test_optimizers_are_named_alike_in_python_and_in_configs(tmp_path):
    full = dataclasses.asdict(AdamW())
    write_start(tmp_path / "class", config={"optimizer": {"class_path": "AdamW", "init_args": full}}, optimizer=AdamW())
    write_start(tmp_path / "function", config={"optimizer": "optax.adamw"}, optimizer=optax.adamw)
    write_start(tmp_path / "python", {"optimizer": "adamw"}, optimizer=optax.adamw)
    write_start(tmp_path / "object", {"optimizer": "AdamW"}, optimizer=AdamW())
    assert compare(find_runs([tmp_path])).settings == ()
    same = functools.partial(optax.adamw, weight_decay=0.1)
    write_start(tmp_path / "partial", {"optimizer": "adamw(weight_decay=0.1)"}, optimizer=same)
    comparison = compare(find_runs([tmp_path]))
    assert comparison.settings == ("optimizer.weight_decay",)
    decays = {"class": 1e-4, "function": 1e-4, "python": 1e-4, "object": 1e-4, "partial": 0.1}
    assert {row["run"]: row["optimizer.weight_decay"] for row in comparison.rows} == decays
    write_start(tmp_path / "own", {"optimizer": "<lambda>"}, optimizer=lambda lr: optax.sgd(lr))
    comparison = compare(find_runs([tmp_path / name for name in ("class", "own")]))
    assert [row["optimizer"] for row in comparison.rows] == ["adamw", "<lambda>"]


def test_settings_inside_of_optimizers_stay_columns_of_runs_from_configs(tmp_path):
    for beta in (0.8, 0.9):
        inner = {"class_path": "AdamW", "init_args": {"b1": beta}}
        groups = Groups(AdamW(b1=beta), [Group("head", lr=2.0)])
        config = {"optimizer": {"class_path": "Groups", "init_args": {"optimizer": inner}}}
        write_start(tmp_path / f"{beta}", config=config, optimizer=groups)
    assert compare(find_runs([tmp_path])).settings == ("optimizer.optimizer.b1",)


def test_a_run_without_a_recorded_optimizer_keeps_what_all_were_given(tmp_path):
    write_start(tmp_path / "new", {"optimizer": "adamw"}, optimizer=optax.adamw)
    write_start(tmp_path / "old", config={"optimizer": "AdamW"})
    comparison = compare(find_runs([tmp_path]))
    assert [row["optimizer"] for row in comparison.rows] == ["adamw", "AdamW"]


def test_runs_from_python_beside_those_from_configs(tmp_path):
    """Only what both know can differ."""
    schedule = {"class_path": "Cosine", "init_args": {"first": 0.1}}
    for name in ("yaml", "other"):
        config = {"model": "mine.MLP", "lr": schedule, "train": {"batch_size": 8, "shuffle": True}}
        write_start(tmp_path / name, config=config, batch_size=8)
    settings = {"model": "MLP (flax.nnx)", "lr": "Cosine(first=0.1) in 9 steps", "seed": 0, "precision": "float32"}
    write_start(tmp_path / "python", {**settings, "with_batch_size": 8}, batch_size=8)
    assert compare(find_runs([tmp_path])).settings == ()
    write_start(tmp_path / "python2", {**settings, "model": "CNN (flax.nnx)", "with_batch_size": 16}, batch_size=16)
    comparison = compare(find_runs([tmp_path]))
    assert comparison.settings == ("model", "data.train.batch_size")
    assert {row["run"]: row["model"] for row in comparison.rows} == {
        "yaml": "MLP", "other": "MLP", "python": "MLP", "python2": "CNN",
    }  # fmt: skip


def test_many_metrics_transpose_the_table(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, {f"valid/M{number}": [0.5] for number in range(20)})
    lines = compare(find_runs([tmp_path])).lines(width=60)
    assert [line.split()[0] for line in lines] == ["run", "status", "time", *(f"valid/M{n}" for n in range(20))]
    assert lines[0].split() == ["run", "a", "b"]


def test_monitor_is_first_and_texts_are_omitted(tmp_path):
    saving = "with_file_checkpointer: {monitor: valid/Score}\n"
    values = {"valid/Loss": [1.0], "valid/Confusion": ["1 0"], "valid/Score": [0.5]}
    write_run(tmp_path / "a", values, config=config(0.1, saving))
    assert compare(find_runs([tmp_path])).metrics == ("valid/Score", "valid/Loss")
    comparison = compare(find_runs([tmp_path]), ["Confusion"])
    assert comparison.lines()[1].split()[-3:] == ["-", "-", "text"]
    assert comparison.rows[0]["valid/Confusion last"] == "1 0"


@pytest.mark.parametrize(
    ("column", "order"),
    [("Score", "bac"), ("valid/Score", "bac"), ("lr", "acb"), ("run", "abc"), ("epochs", "cab")],
)
def test_sorting(runs, column, order):
    """Runs without the value, or with NaN, sort last. Sorting is stable."""
    assert "".join(row["run"] for row in compare(runs, sort=column).rows) == order


def test_setting_of_some_runs_is_a_column(tmp_path):
    write_run(tmp_path / "a", config=config(0.1))
    write_run(tmp_path / "b", config=config(0.1, "grads_accumulation: 4\n"))
    write_run(tmp_path / "from-python")
    comparison = compare(find_runs([tmp_path]))
    assert comparison.settings == ("grads_accumulation",)
    assert [row["grads_accumulation"] for row in comparison.rows] == [None, 4, None]
    assert comparison.lines()[1].split()[-4] == "-"


def test_runs_from_python(tmp_path):
    """Their journals contain the settings; the last start counts."""
    for name, rates in (("a", [0.1, 0.2]), ("b", [0.1])):
        lines = [{"event": "start", "time": 0.0, "step": 0, "config": {"lr": rate}} for rate in rates]
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = compare(find_runs([tmp_path]))
    assert [row["lr"] for row in comparison.rows] == [0.2, 0.1]


def test_number_differs_from_its_text(tmp_path):
    write_run(tmp_path / "a", config="lr: 1\n")
    write_run(tmp_path / "b", config="lr: '1'\n")
    assert compare(find_runs([tmp_path])).settings == ("lr",)


def test_nan_equals_nan(tmp_path):
    write_run(tmp_path / "a", config="lr: 1\nmissing: .nan\nscale: [1, .nan]\n")
    write_run(tmp_path / "b", config="lr: 2\nmissing: .nan\nscale: [1, .nan]\n")
    write_run(tmp_path / "c", config="lr: 2\nmissing: 0\nscale: [1, .nan]\n")
    a, b, c = find_runs([tmp_path])
    assert compare([a, b]).settings == ("lr",)
    assert compare([b, c]).settings == ("missing",)
    assert differing(a.config, b.config) == {"lr": (1, 2)}


def test_short_names_of_settings(tmp_path):
    for name, width in (("a", 1), ("b", 2)):
        inner = f"{{class_path: M, init_args: {{width: {width}, depth: {width}}}}}"
        other = f"{{class_path: N, init_args: {{width: {width}}}}}"
        write_run(tmp_path / name, config=f"model: {inner}\nteacher: {other}\n")
    assert compare(find_runs([tmp_path])).lines()[0].split()[5:8] == ["model.width", "depth", "teacher.width"]


def test_runs_that_share_no_metric(tmp_path):
    write_run(tmp_path / "a", {"valid/A": [1.0]})
    write_run(tmp_path / "b", {"valid/B": [1.0]})
    rows = compare(find_runs([tmp_path])).rows
    assert (rows[0]["valid/A last"], rows[0]["valid/B last"]) == (1.0, None)


def test_evaluations_of_one_run_are_shown(tmp_path):
    values = {"valid/Loss": [1.0], "train/Loss": [2.0]}
    for name in "abc":
        write_run(tmp_path / name, values)
    write_run(tmp_path / "d", {**values, "valid-other/Loss": [1.0], "test/Loss": [1.5], "test/Matrix": ["1 0"]})
    assert compare(find_runs([tmp_path])).metrics == ("valid/Loss", "test/Loss")
    for name in "ef":
        write_run(tmp_path / "without" / name, {"train/Loss": [2.0]})
    write_run(tmp_path / "without" / "g", {"train/Loss": [2.0], "test/Loss": [1.5]})
    assert compare(find_runs([tmp_path / "without"])).metrics == ("test/Loss", "train/Loss")


def test_control_characters_in_names_are_removed(tmp_path):
    write_run(tmp_path / "a", {"valid/\x1b[31mRed": [1.0], "valid/Text": ["\x1b]0;title\x07"]}, config='"\\e[2J": 1\n')
    write_run(tmp_path / "b", config="seed: 1\n")
    text = "\n".join(compare(find_runs([tmp_path])).lines())
    assert "\x1b" not in text
    assert "\x07" not in text


def test_unknown_columns_and_metrics_are_refused(runs):
    with raises_code("run-metric-unknown", name="Scor"):
        compare(runs, ["Scor"])
    with raises_code("run-column-unknown"):
        compare(runs, sort="second")


@pytest.mark.full
def test_hundreds_of_runs(tmp_path):
    for number in range(300):
        write_run(tmp_path / f"run-{number}", config=f"seed: {number}\n")
    rows = compare(find_runs([tmp_path]), sort="seed").rows
    assert [row["seed"] for row in rows] == list(range(300))


def test_runs_sort_by_column_titles(tmp_path):
    for name, value in (("a", 2), ("b", 1)):
        write_run(tmp_path / name, config=f"optimizer: {{class_path: X, init_args: {{b1: {value}}}}}\nrun: {value}\n")
    runs = find_runs([tmp_path])
    for column in ("b1", "optimizer.b1", "config.run"):
        assert [row["run"] for row in compare(runs, sort=column).rows] == ["b", "a"]
    comparison = compare(runs, sort="train/Loss")
    assert comparison.metrics == ("valid/Loss", "train/Loss")
    assert "train/Loss" in comparison.lines()[0]


def test_types_of_yaml_become_json(tmp_path):
    write_run(tmp_path / "a", config="x: 2026-01-01\ny: !!set {b}\n")
    write_run(tmp_path / "b", config="x: 1\n")
    assert json.dumps([row["x"] for row in compare(find_runs([tmp_path])).rows]) == '["2026-01-01", 1]'


def test_one_run_is_in_memory_at_a_time(tmp_path):
    for number in range(5):
        write_run(tmp_path / f"run-{number}", config=f"seed: {number}\n")
    references, most = [], 0

    def runs():
        nonlocal most
        for run in each_run([tmp_path]):
            references.append(weakref.ref(run))
            most = max(most, sum(reference() is not None for reference in references))
            yield run
            del run

    assert [row["seed"] for row in compare(runs(), sort="seed").rows] == [0, 1, 2, 3, 4]
    assert most == 1


def test_numbers_in_names_sort_by_their_values(tmp_path):
    for name in ("seed-10", "seed-9", "seed-1"):
        write_run(tmp_path / name)
    rows = compare(find_runs([tmp_path]), sort="run").rows
    assert [row["run"] for row in rows] == ["seed-1", "seed-9", "seed-10"]
