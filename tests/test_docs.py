"""Check that everything the documents mention exists, and that their code prints the output shown."""

import contextlib
import gzip
import io
import json
import re
import shlex
import sys
import tarfile
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from learner.cli.main import main
from learner.runs.lock import locked
from learner.util.png import png
from tests.support.shown import assert_shown
from tests.support.written import write_run, write_steps

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "reliability.md").read_text()


def test_named_tests_exist():
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    defined = set(re.findall(r"def (test_\w+)\(", code)) | {path.name for path in (ROOT / "tests").rglob("*.py")}
    named = set(re.findall(r"`(?:tests/)?(?:\w+/)*(test_\w+(?:\.py)?)(?:\[\w+\])?`", DOCUMENT))
    assert len(named) > 40
    assert named - defined == set()
    assert [path for path in re.findall(r"`(tests/[\w/]+\.py)`", DOCUMENT) if not (ROOT / path).exists()] == []


@pytest.mark.full
def test_printed_memory_is_about_that_shown(tmp_path, monkeypatch):
    """Compare approximately: other versions of XLA share buffers differently."""
    text = (ROOT / "docs" / "precision.md").read_text()
    (code,), (shown,) = (
        re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for kind in ("python", "text")
    )
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    found, expected = (re.findall(r"(\w+) (\d+) MB", text) for text in (printed.getvalue(), shown))
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, a), (_, b) in zip(found, expected, strict=True):
        assert abs(int(a) - int(b)) <= 0.2 * int(b) + 1


@pytest.mark.full
def test_shown_schedules(tmp_path, monkeypatch):
    """The Python prints the output shown, the config builds the same schedule, and no schedule is missing."""
    import yaml

    import learner.schedules
    from learner.cli.configs.recipes import recipe
    from learner.cli.configs.schema import names_for

    text = (ROOT / "docs" / "schedules.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for kind, code in blocks:
            if kind == "python":
                exec(code, names)
    assert printed.getvalue() == "".join(shown for kind, shown in blocks if kind == "text")
    assert list(tmp_path.iterdir()) == []
    configs = [yaml.safe_load(shown)["lr"] for kind, shown in blocks if kind == "yaml"]
    assert [recipe(each, "lr", names_for("lr")).make() for each in configs] == [names["lr"], names["same"]]
    tabled = set(re.findall(r"`(\w+)\(", "".join(line for line in text.splitlines() if line.startswith("| `"))))
    assert tabled == set(learner.schedules.__all__) - {"Resolved", "RunLength", "Schedule"}


def test_the_configs_of_precision_can_be_read():
    import yaml

    from learner import LearnerBuilder
    from learner.cli.configs.builder_options import option
    from learner.cli.configs.schema import names_for

    text = (ROOT / "docs" / "precision.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for name, value in [item for block in blocks for item in yaml.safe_load(block).items()]:
        option(LearnerBuilder, name, value, name, names_for(name) or None).apply(LearnerBuilder("unused"))


def test_the_optimizers_of_the_document(tmp_path, monkeypatch):
    """The Python prints the output shown, and the config builds the same optimizer apart from one rate."""
    import yaml

    from learner.cli.configs.recipes import recipe
    from learner.cli.configs.schema import names_for

    text = (ROOT / "docs" / "optimizers.md").read_text()
    python, config, shown = (
        re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for kind in ("python", "yaml", "text")
    )
    names = {}
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(python), names)
    assert printed.getvalue() == "".join(shown)
    how = {"alone": True, "kind": "optimizer"}
    configured = recipe(yaml.safe_load(config[0])["optimizer"], "optimizer", names_for("optimizer"), **how).make()
    for one, other in zip(configured.groups, names["optimizer"].groups, strict=True):
        assert (one.match, one.weight_decay) == (other.match, other.weight_decay)
    assert configured.groups[2].lr == names["optimizer"].groups[2].lr
    assert (configured.optimizer.weight_decay, configured.optimizer.weight_decay_on) == (0.01, "kernels")


def test_the_sources_do_what_is_shown(tmp_path, monkeypatch):
    """Compare everything but times."""
    text = (ROOT / "docs" / "data-sources.md").read_text()
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names, shown, printed = {}, [], io.StringIO()
    for kind, block in blocks:
        with contextlib.redirect_stdout(printed):
            exec(block, names) if kind == "python" else shown.append(block)
    lines, expected = printed.getvalue().splitlines(), "".join(shown).splitlines()
    assert len(lines) == len(expected)
    assert lines[:-1] == expected[:-1]
    assert lines[-1].startswith("read in ")


def test_every_source_is_in_the_table_and_in_configs(tmp_path, monkeypatch):
    import yaml

    from learner.cli.configs.sources import source
    from learner.data import sources

    text = (ROOT / "docs" / "data-sources.md").read_text()
    assert [name for name in sources.__all__ if f"`{name}" not in text] == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mymodule", raising=False)
    (tmp_path / "mymodule.py").write_text("def my_torch_dataset():\n    return [([1.0], 0), ([2.0], 1)]\n")
    (tmp_path / "iris.csv").write_text("length,width,kind\n5.1,3.5,setosa\n6.2,3.4,virginica\n")
    for name in ("data", "shards"):
        (tmp_path / name).mkdir()
    for name, kind in (("1", "virginica"), ("2", "setosa")):
        (tmp_path / f"data/part-{name}.csv.gz").write_bytes(gzip.compress(f"length,kind\n5.9,{kind}\n".encode()))
    (tmp_path / "0.cls").write_text("3")
    (tmp_path / "0.png").write_bytes(png(np.zeros((2, 2, 3), np.uint8)))
    with tarfile.open(tmp_path / "shards" / "train-0.tar", "w") as archive:
        archive.add(tmp_path / "0.cls", "0.cls")
        archive.add(tmp_path / "0.png", "0.png")
    blocks = [yaml.safe_load(b) for b in re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    rows = [next(iter(source(block["train"], "train", 0).make())) for block in blocks]
    assert [sorted(batch) for batch in rows] == [
        ["features", "label"],
        ["kind", "length"],
        ["image", "label"],
        ["image", "label"],
    ]
    assert sorted(rows[1]["kind"].tolist()) == [0, 1]


@pytest.mark.full
def test_code_about_data_prints_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "data.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 14
    names = {}
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert printed.getvalue() == shown


def test_the_config_about_data_can_be_read(tmp_path, monkeypatch):
    import yaml

    from learner.cli.configs.sources import source

    monkeypatch.delitem(sys.modules, "mymodule", raising=False)
    (tmp_path / "mymodule.py").write_text(
        "import numpy as np\n\ndef flip(item, rng):\n    return item\n\nclass WebPages:\n    def __iter__(self):\n"
        "        yield {name: np.zeros(128, np.int32) for name in ('text', 'target')}\n\n"
        "def squares():\n    yield from ({'text': np.int32(i * i)} for i in range(9))\n\n"
        "def batches():\n    yield {'text': np.arange(3)}\n\n"
        "def documents():\n    yield from ({'text': np.full(300, i, np.int32)} for i in range(9))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (ROOT / "docs" / "data.md").read_text()
    mixture, streams, one_stream, packed, block = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for name, size in (("code", 200), ("web", 1000)):
        (tmp_path / f"{name}.txt").write_text("a" * size)
    mixed = source(yaml.safe_load(mixture)["train"], "train", 0).make()
    assert next(mixed.epoch(1))["text"].shape == (len(mixed.dataset), 128)
    stream = source(yaml.safe_load(streams)["train"], "train", 0).make()
    assert next(iter(stream.batch(4)))["text"].shape == (4, 128)
    squares, batches = (source(value, key, 0).make() for key, value in yaml.safe_load(one_stream).items())
    assert next(iter(squares.batch(4)))["text"].tolist() == [0, 1, 4, 9]
    assert [batch["text"].tolist() for batch in batches()] == [[0, 1, 2]]
    (rows,) = source(yaml.safe_load(packed)["train"], "train", 0).make().batch(4)
    assert (rows["text"].shape, rows["mask"].sum()) == ((2, 2048), 2700)
    loaders = {key: source(value, key, 0).make() for key, value in yaml.safe_load(block).items()}
    assert (loaders["train"].num_items(), len(loaders["train"]), loaders["valid"].num_items()) == (992, 31, 144)
    assert next(loaders["train"].epoch(1, start=30))["image"].shape == (32, 8, 8)


@pytest.mark.full
def test_the_code_about_records_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "records.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in code:
            exec(block, names)
    assert len(code) == 4
    assert printed.getvalue() == shown
    assert names["steps"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.mpk.gz", "model.safetensors", "runs"]


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_the_code_of_loops_prints_what_is_shown(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "loops.md").read_text()
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names, compared = {"__name__": "loops"}, 0
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for (kind, code), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
            if kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(code, "a block of loops.md", "exec"), names)
                shown = shown if following == "text" else ""
                compared += bool(shown)
                without = [re.sub(r"(?<=Accuracy )[\d.]+", "#", text) for text in (printed.getvalue(), shown)]
                assert without[0] == without[1]
    assert compared == 6
    assert not (tmp_path / "runs" / "unused").exists()


def test_links_of_loops_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "docs" / "loops.md").read_text())
    assert len(links) >= 7
    for link in links:
        assert (ROOT / "docs" / link).exists(), link


def test_the_code_about_runs_prints_what_is_shown(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "runs.md").read_text()
    ((code, shown),) = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for epoch in (1, 2, 3):
        write_steps(write_run("runs/digits") if epoch == 1 else "runs/digits", "Loss", epoch, [1, 2])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue() == shown


@pytest.mark.full
def test_the_code_about_profiles_writes_them(tmp_path, monkeypatch):
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "profile.md").read_text(), re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue().startswith("steps 6 to 20: ")
    for place, steps in (("profile", [5, 20]), ("runs/profiled/profile", [10, 30])):
        profile = json.loads(Path(place, "profile.json").read_text())
        assert [profile["first"], profile["last"]] == steps


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_shown_checks(tmp_path, monkeypatch):
    """The Python prints the output shown, and the table has every check."""
    from learner.diagnostics.check_result import QUESTIONS

    text = (ROOT / "docs" / "checks.md").read_text()
    ((code, shown),) = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "checks"})
    assert printed.getvalue() == shown
    assert list(tmp_path.iterdir()) == []
    assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == [question.name for question in QUESTIONS]


@pytest.mark.full
def test_the_commands_about_runs(tmp_path, monkeypatch):
    """Run all commands as shown."""
    text = (ROOT / "docs" / "runs.md").read_text()
    lines = [line.partition("#")[0].partition(">")[0] for line in text.splitlines() if line.startswith("learner ")]
    assert len(lines) >= 9
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    values = {"train/Loss": [2.0, 1.0], "valid/Loss": [2.0, 1.0], "valid/Accuracy": [0.5, 0.75]}
    write_run("runs/digits", values, config="seed: 0\n")
    for line in lines:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(shlex.split(line)[1:]) == 0, line


@pytest.mark.full
def test_the_code_about_metrics_prints_what_is_shown(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "metrics.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names = {}
    assert len(blocks) >= 2
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        assert printed.getvalue() == shown


def test_the_configs_of_metrics_can_be_read():
    import yaml

    from learner import LearnerBuilder
    from learner.cli.configs.builder_options import option
    from learner.cli.configs.schema import names_for

    text = (ROOT / "docs" / "metrics.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    builder = LearnerBuilder("unused")
    for name, value in [item for block in blocks for item in yaml.safe_load(block).items()]:
        option(LearnerBuilder, name, value, name, names_for(name)).apply(builder)


def test_table_has_every_metric():
    """The table and the catalog have the same metrics, with their names and an arrow for their direction."""
    import inspect

    import learner.metrics

    text = (ROOT / "docs" / "metrics.md").read_text()
    bases = {"CollectingMetric", "HostMetric", "MeanMetric", "Metric", "MetricBase"}
    metrics = {name: getattr(learner.metrics, name) for name in learner.metrics.__all__ if name not in bases}
    metrics = {n: m for n, m in metrics.items() if inspect.isclass(m) and issubclass(m, learner.metrics.MetricBase)}
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    tabled = {re.match(r" *`(\w+)\(", cells[0]).group(1): cells for cells in rows if "(" in cells[0]}
    elsewhere = (ROOT / "docs" / "metrics-sequences-images.md").read_text()
    of_classes_and_numbers = {
        n for n, m in metrics.items() if "targets" in getattr(m, "fields", ()) and f"`{n}" not in elsewhere
    }
    assert of_classes_and_numbers <= set(tabled) <= set(metrics)
    required = {"classes": 3, "q": 0.9}
    for name in of_classes_and_numbers:
        metric = metrics[name](**{p: required[p] for p in inspect.signature(metrics[name]).parameters if p in required})
        arrow = {True: "↑", False: "↓", None: ""}[metric.higher_is_better]
        assert (tabled[name][1].strip(), tabled[name][-1].strip()) == (metric.name, arrow)


@pytest.mark.full
def test_the_metrics_of_sequences_images_and_the_run(monkeypatch):
    """The Python prints the output shown, the config is valid, and every metric of these modules is in the table."""
    import yaml

    from learner import LearnerBuilder, metrics
    from learner.cli.configs.builder_options import option
    from learner.cli.configs.schema import names_for

    text = (ROOT / "docs" / "metrics-sequences-images.md").read_text()
    names, shown, printed = {}, [], io.StringIO()
    for kind, block in re.findall(r"^```(python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        with contextlib.redirect_stdout(printed):
            exec(block, names) if kind == "python" else shown.append(block)
    assert printed.getvalue() == "".join(shown)
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    builder, own = LearnerBuilder("unused"), types.ModuleType("mymodule")
    vars(own)["difference"] = lambda a, b: a - b
    monkeypatch.setitem(sys.modules, "mymodule", own)
    for name, value in yaml.safe_load(config).items():
        option(LearnerBuilder, name, value, name, names_for(name) or None).apply(builder)
    tabled = set(re.findall(r"`(\w+)\(", "".join(line for line in text.splitlines() if line.startswith("| `"))))
    modules = ("adaptors", "aggregates", "bleu", "edits", "heads", "subsets", "image_quality", "overlaps", "rouge")
    modules += ("sequences", "speed", "system", "on_text", "optimizer_step")
    here = {f"learner.metrics.{module}" for module in modules}
    assert tabled - {"Perplexity"} == {n for n in metrics.__all__ if getattr(metrics, n).__module__ in here}


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_the_code_about_loggers_prints_what_is_shown(tmp_path, monkeypatch):
    import yaml

    from learner import LearnerBuilder
    from learner.cli.configs.builder_options import option
    from learner.cli.configs.importing import exports
    from learner.cli.configs.schema import names_for
    from tests.support.tfevents import scalars

    text = (ROOT / "docs" / "loggers.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = {"__name__": "loggers"}
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for (kind, code), (following, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
            if kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(code, "a block of loggers.md", "exec"), names)
                assert printed.getvalue() == (shown if following == "text" else "")
    assert [step for step, _ in scalars(tmp_path / "runs/logged/tensorboard")["train/step/Loss"]] == [*range(5, 47, 5)]
    monkeypatch.setenv("HOOK_URL", "https://hooks.example.org")
    monkeypatch.setenv("HOOK_TOKEN", "a1b2")
    builder = LearnerBuilder(tmp_path / "config")
    for config in (yaml.safe_load(code)["metric_loggers"] for kind, code in blocks if kind == "yaml"):
        option(LearnerBuilder, "metric_loggers", config, "", names_for("metric_loggers")).apply(builder)
    assert [type(logger).__name__ for logger in builder._options.loggers] == ["JsonLines", "TensorBoard", "Webhook"]
    tabled = set(re.findall(r"^\| `(\w+)\(", text, re.MULTILINE))
    assert tabled == {*exports("learner.loggers", "learner.events.Listener")} - {"MetricLogger"}


@pytest.mark.full
def test_the_code_about_renderers_prints_what_is_shown(tmp_path, monkeypatch):
    import yaml

    from learner import LearnerBuilder
    from learner.cli.configs.builder_options import option
    from learner.cli.configs.importing import exports
    from learner.cli.configs.schema import names_for

    text = (ROOT / "docs" / "renderers.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = {"__name__": "renderers"}
    monkeypatch.chdir(tmp_path)
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        for kind, code in blocks:
            if kind == "python":
                exec(compile(code, "a block of renderers.md", "exec"), names)
    assert printed.getvalue() == [code for kind, code in blocks if kind == "text"][-1]
    (config,) = [yaml.safe_load(code) for kind, code in blocks if kind == "yaml"]
    builder = LearnerBuilder(tmp_path / "config")
    option(LearnerBuilder, "renderer", config["renderer"], "", names_for("renderer")).apply(builder)
    assert type(builder._options.renderer).__name__ == "PlainRenderer"
    tabled = set(re.findall(r"^\| `(\w+)\(", text, re.MULTILINE))
    assert tabled == {*exports("learner.renderers", "learner.events.Listener")}


def test_the_code_about_watching_prints_what_is_shown(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "watch.md").read_text()
    (code,), (shown,) = (
        re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for kind in ("python", "text")
    )
    monkeypatch.chdir(tmp_path)
    write_run("runs/digits")
    with locked(Path("runs/digits")), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert printed.getvalue() == shown


def test_the_commands_about_watching(tmp_path, monkeypatch):
    """Run all commands as shown, up to the terminal."""
    text = (ROOT / "docs" / "watch.md").read_text()
    lines = [line.partition("#")[0] for line in text.splitlines() if line.startswith("learner ")]
    assert len(lines) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("learner.cli.watch.refuse_pipes", lambda: None)
    shown = []
    monkeypatch.setattr("learner.reports.live.app.watch", lambda *given: shown.append(given) or 0)
    values = {"train/Loss": [2.0, 1.0], "valid/Loss": [2.0, 1.0], "valid/Accuracy": [0.5, 0.75]}
    write_run("runs/digits", values, config="seed: 0\n")
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
    assert [view.x for _, view, _ in shown] == ["step", "step", "epoch"]


def test_the_keys_of_watching_are_in_the_table():
    from learner.reports.live.keys import KEYS, SHOWN

    text = (ROOT / "docs" / "watch.md").read_text()
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    tabled = {key for row in rows for key in re.findall(r"`(.+?)`", row)}
    assert tabled == {SHOWN.get(key, key) for key, *_ in KEYS}


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.full
def test_overview_prints_what_is_shown(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "summary.md").read_text()
    code, shown = (
        re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for kind in ("python", "text")
    )
    names, printed = {"__name__": "summary"}, []
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in code:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block, "a block of summary.md", "exec"), names)
            printed.append(out.getvalue())
    assert (len(code), len(shown)) == (2, 2)
    assert_shown(shown[0], printed[0])
    assert printed[0].splitlines()[:-1] == shown[0].splitlines()[:-1]  # all but the memory
    assert printed[1].startswith(printed[0])  # fit prints the summary, and then trains
    assert printed[1].endswith(shown[1])


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_the_commands_about_summaries(tmp_path, monkeypatch):
    """Run all commands as shown, in order, after a run."""
    lines = re.findall(r"^learner (?!= ).*$", (ROOT / "docs" / "summary.md").read_text(), re.MULTILINE)
    assert len(lines) == 6
    monkeypatch.chdir(tmp_path)
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for line in lines:
        words = [*shlex.split(line)[1:], *(["--num_epochs=1"] if " fit " in line else [])]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(words) == 0, line
        assert out.getvalue(), line
