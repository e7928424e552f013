"""Tests of keys and values of the command line, and of reading YAML."""

import copy
import os
import tracemalloc

import pytest

from learner.cli.configs.overrides import apply_overrides, override, read_yaml, value_of
from learner.cli.parsing import Parser
from learner.errors import LearnerError
from tests.support.codes import named_case, raises_code

CONFIG = {
    "num_epochs": 3,
    "model": {"class_path": "m.MLP", "init_args": {"hidden": 8, "head": {"class_path": "m.Head"}}},
    "optimizer": "AdamW",
    "metrics": ["Accuracy", {"class_path": "TopK", "init_args": {"k": 3}}],
    "lr": 0.1,
}


def test_overrides_change_a_config():
    cases = [
        ("num_epochs", 5, {"num_epochs": 5}),
        ("seed", 5, {"seed": 5}),
        ("model.hidden", 9, {"model": {**CONFIG["model"], "init_args": {**CONFIG["model"]["init_args"], "hidden": 9}}}),
        (
            "model.init_args.hidden",
            9,
            {"model": {**CONFIG["model"], "init_args": {**CONFIG["model"]["init_args"], "hidden": 9}}},
        ),
        (
            "model.head.size",
            2,
            {
                "model": {
                    "class_path": "m.MLP",
                    "init_args": {"hidden": 8, "head": {"class_path": "m.Head", "init_args": {"size": 2}}},
                }
            },
        ),
        ("model", "m.CNN", {"model": "m.CNN"}),
        ("model.class_path", "m.CNN", {"model": {"class_path": "m.CNN"}}),
        ("model.class_path", "m.MLP", {}),
        ("optimizer.b1", 0.5, {"optimizer": {"class_path": "AdamW", "init_args": {"b1": 0.5}}}),
        ("metrics.0", "Loss", {"metrics": ["Loss", CONFIG["metrics"][1]]}),
        ("metrics.1.k", 5, {"metrics": ["Accuracy", {"class_path": "TopK", "init_args": {"k": 5}}]}),
        ("lr.class_path", "Cosine", {"lr": {"class_path": "Cosine"}}),
        ("with_file_checkpointer.keep_last", 1, {"with_file_checkpointer": {"keep_last": 1}}),
        ("train.dataset.split", "a", {"train": {"dataset": {"split": "a"}}}),
    ]
    for key, value, changed in cases:
        with named_case((key, value, changed)):
            config = copy.deepcopy(CONFIG)
            override(config, key, value)
            assert config == {**CONFIG, **changed}


def test_index_must_be_in_the_list():
    for key in ("metrics.2", "metrics.first", "metrics.-1"):
        with raises_code("cli-list-index", key=key):
            override(copy.deepcopy(CONFIG), key, 1)


def test_invalid_overrides_are_reported_together():
    with raises_code("config-unusable", "--metrics.7:", "--metrics.x:"):
        apply_overrides(copy.deepcopy(CONFIG), [("metrics.7", "1"), ("seed", "2"), ("metrics.x", "1")])


def test_values_of_words():
    cases = [
        ("3", 3),
        ("3e-4", 3e-4),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("[1, a]", [1, "a"]),
        ("{k: 5}", {"k": 5}),
        ("runs/a", "runs/a"),
        ("", ""),
        ("a: b: c", "a: b: c"),
        ("2020-01-01", "2020-01-01"),
        ("on", "on"),
        ("{no: yes}", {"no": "yes"}),
        ("Warning:", "Warning:"),
        ("{a, b}", "{a, b}"),
        ("{a: null}", {"a": None}),
        ("!!int abc", "!!int abc"),
        ("runs/try #1", "runs/try #1"),
        ("#1", "#1"),
        ("a#1", "a#1"),
        ('"a #1"', "a #1"),
        ("[1, 'a #1']", [1, "a #1"]),
        ("runs/a\nb", "runs/a\nb"),
        (" a ", "a"),
        ("&x y", "&x y"),
        ("&x 5", "&x 5"),
        ("[&x 1, *x]", [1, 1]),
        ("!!str 5", "5"),
        ("|\n a\n b", "a\nb"),
        ("a: 1\nb: 2", {"a": 1, "b": 2}),
    ]
    for text, value in cases:
        with named_case((text, value)):
            assert value_of(text) == value
            assert type(value_of(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("[" * 30_000, "cli-value-malformed", ["50 levels"]),
        ("{a: 1, a: 2}", "cli-value-malformed", ["'a'"]),
        ("[&a [1], *a, &b [*b]]", "cli-value-malformed", ["*b"]),
        (os.fsdecode(b"runs/\xff"), "cli-value-encoding", ["runs/"]),
    ],
)
def test_unsafe_values_are_refused(text, code, shown):
    with raises_code(code, *shown) as caught:
        value_of(text)
    assert len(str(caught.value)) < 200


def test_too_deep_key_is_refused():
    with raises_code("cli-option-too-deep"):
        override({}, "a." * 30_000 + "a", 1)


def parse(*words):
    parser = Parser("it", "", keys=True)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("-o", "--output")
    parser.add_argument("--print_config", action="store_true")
    return parser.read(words)


def test_words_are_parsed(capsys):
    line = parse(
        "run", "--a=1", "--b.c", "2", "-o", "f.npz", "--d=", "--e=x=y z", "--print-config", "more", "--f", "-1"
    )
    assert (line.paths, line.output, line.print_config) == (["run", "more"], "f.npz", True)
    assert line.overrides == [("a", "1"), ("b.c", "2"), ("d", ""), ("e", "x=y z"), ("f", "-1")]
    line = parse("--num-epochs=3", "--valid.my-split=a", "--output=-")
    assert (line.output, line.overrides) == ("-", [("num_epochs", "3"), ("valid.my-split", "a")])
    line = parse("--model.help", "m.MLP", "a.yaml", "--lr.help")
    assert (line.paths, line.overrides) == (["a.yaml"], [("model.help", "m.MLP"), ("lr.help", "")])
    with pytest.raises(SystemExit) as ended:
        parse("-h")
    assert (ended.value.code, capsys.readouterr().out.startswith("usage: learner it ")) == (0, True)


def test_switch_may_have_a_value():
    assert [parse(word).print_config for word in ("--print_config=true", "--print_config=false")] == [True, False]
    with raises_code("cli-switch-value", "'maybe'", name="print_config"):
        parse("--print_config=maybe")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--num_epochs"], "cli-option-without-value"),
        (["--resume", "--a=1"], "cli-option-without-value"),
        (["-x"], "cli-word-unexpected"),
        (["-o"], "cli-usage"),
    ],
)
def test_invalid_words_are_refused(words, code):
    with raises_code(code):
        parse(*words)


def test_yaml_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("lr: 1e-3  # a float, not a text\nname: é\n", encoding="utf-8")
    assert read_yaml(path) == {"lr": 0.001, "name": "é"}


def test_invalid_files_are_refused(tmp_path):
    cases = [
        (b"a: [1,\n", "config-not-yaml", ["b.yaml", "YAML"]),
        (b"- 1\n", "config-not-mapping", ["b.yaml"]),
        (b"", "config-not-mapping", ["b.yaml"]),
        (b"1: 2\n", "config-not-mapping", ["b.yaml"]),
        (b"\xff\xfe\x00", "config-unreadable", ["b.yaml"]),
        (b"a: !!python/object/apply:os.mkdir [made]\n", "config-not-yaml", ["b.yaml", "YAML", "os.mkdir"]),
        (b"a: !!python/name:os.system\n", "config-not-yaml", ["b.yaml", "YAML", "os.system"]),
        (b"a: " + b"[" * 1000 + b"]" * 1000, "config-unsafe-yaml", ["b.yaml", "50 levels"]),
        (b"- " * 500_000, "config-unsafe-yaml", ["b.yaml", "50 levels"]),
        (b"a: " + b"x" * 2**20, "config-file-too-large", ["b.yaml"]),
        (b"a: &a [1, *a]\n", "config-unsafe-yaml", ["b.yaml", "*a"]),
        (b"a: &a {b: {<<: *a}}\n", "config-unsafe-yaml", ["b.yaml", "*a"]),
        (b"a: &a x\nb: &a [*a]\n", "config-unsafe-yaml", ["b.yaml", "*a"]),
        (b"a: [*b]\n", "config-not-yaml", ["b.yaml", "YAML"]),
    ]
    for content, code, shown in cases:
        with named_case((content, code, shown)):
            (tmp_path / "b.yaml").write_bytes(content)
            with raises_code(code, *shown):
                read_yaml(tmp_path / "b.yaml")


def test_missing_file_has_suggestions(tmp_path):
    with raises_code("cli-standard-input"):
        read_yaml("-")
    with raises_code("config-file-missing", "digits.yaml"):
        read_yaml(tmp_path / "digits.yaml")
    (tmp_path / ".digits.yaml").write_text("a: 1")  # hidden files are not suggested
    with pytest.raises(LearnerError) as raised:
        read_yaml(tmp_path / "digits.yaml")
    assert ".digits.yaml" not in str(raised.value)
    (tmp_path / "digit.yaml").write_text("a: 1")
    with raises_code("config-file-missing", "digit.yaml"):
        read_yaml(tmp_path / "digits.yaml")
    for number in range(20):
        (tmp_path / f"{number}.yaml").write_text("a: 1")
    with raises_code("config-file-missing", "'15.yaml' and others"):
        read_yaml(tmp_path / "nothing")
    with pytest.raises(LearnerError) as raised:
        read_yaml("sweep/007-b1=0.9/digits.yaml")
    assert "two dashes" not in str(raised.value)
    (tmp_path / "config.yaml").write_text("a: 1")
    with raises_code("cli-config-directory", f"learner resume {tmp_path}", f"such as {tmp_path}/config.yaml"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    "level", ["[*a{0}, *a{0}]", "{{<<: [*a{0}, *a{0}], b{0}: 1}}", "{{left: *a{0}, right: *a{0}}}"]
)
def test_expanded_aliases_are_bounded(tmp_path, level):
    """Each line doubles the content, and merged keys are copied while the file is read."""
    first = "{b: 1}" if "<<" in level else "[1]"
    lines = [f"k0: &a0 {first}"] + [f"k{i}: &a{i} {level.format(i - 1)}" for i in range(1, 40)]
    (tmp_path / "b.yaml").write_text("\n".join(lines))
    with raises_code("config-unsafe-yaml", "b.yaml", "1048576"):
        read_yaml(tmp_path / "b.yaml")
    (tmp_path / "b.yaml").write_text("\n".join(lines[:5]))
    assert set(read_yaml(tmp_path / "b.yaml")) == {"k0", "k1", "k2", "k3", "k4"}


def test_repeated_long_text_is_bounded(tmp_path):
    (tmp_path / "b.yaml").write_text(f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 110)}]\n")
    with raises_code("config-unsafe-yaml"):
        read_yaml(tmp_path / "b.yaml")


def test_aliases_and_merge_keys(tmp_path):
    (tmp_path / "b.yaml").write_text("a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}\ne: [*a, *a]\n")
    both = {"b": 1, "c": 2}
    assert read_yaml(tmp_path / "b.yaml") == {"a": both, "d": {"b": 1, "c": 3}, "e": [both, both]}


def test_large_file_is_refused_without_reading_it_whole(tmp_path):
    (tmp_path / "b.yaml").touch()
    os.truncate(tmp_path / "b.yaml", 64 * 2**20)
    tracemalloc.start()
    try:
        with raises_code("config-file-too-large"):
            read_yaml(tmp_path / "b.yaml")
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
