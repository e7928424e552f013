"""Tests of configs from several files: merging, references and includes."""

import pytest

from learner.cli.configs.overrides import apply_overrides, read_configs
from learner.config.composition import MOST, merge, refuse_unused_variable, resolve, variables_in
from learner.config.mappings import MOST_INCLUDED, read_mapping
from learner.config.safe_yaml import parse_yaml
from tests.support.codes import raises_code


@pytest.mark.parametrize(
    ("base", "other", "merged"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}}, {"a": 1, "b": {"c": 4, "d": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": "SGD"}, {"a": {"class_path": "Adam"}}, {"a": {"class_path": "Adam"}}),
        (
            {"a": {"class_path": "A", "init_args": {"x": 1}}},
            {"a": {"class_path": "A", "init_args": {"y": 2}}},
            {"a": {"class_path": "A", "init_args": {"x": 1, "y": 2}}},
        ),
        (
            {"a": {"class_path": "A", "init_args": {"x": 1}}},
            {"a": {"class_path": "B", "init_args": {"y": 2}}},
            {"a": {"class_path": "B", "init_args": {"y": 2}}},
        ),
    ],
)
def test_merge(base, other, merged):
    assert merge(base, other) == merged


def test_an_environment_variable_without_its_prefix_is_refused():
    with raises_code("config-reference-unknown", "${env:WIDTH}", name="WIDTH"):
        resolve({"width": "${WIDTH}"})


def test_references_to_the_environment_are_kept_where_asked():
    content = {
        "vars": {"n": "a"},
        "lr": "${env:NONE:1}",
        "loggers": ["${vars.n}/${env:TOKEN}", "${env:TOKEN}", "${lr}"],
    }
    resolved = {"lr": 1, "loggers": ["a/${env:TOKEN}", "${env:TOKEN}", "${env:NONE:1}"]}
    assert resolve(content, keep=["loggers"]) == resolved


def test_references_keep_types_and_interpolate_text(monkeypatch):
    monkeypatch.setenv("WIDTH", "8")
    monkeypatch.setenv("WHO", "me: you")
    content = {
        "vars": {"rate": 0.1, "on": True, "layers": [1, {"n": "${env:WIDTH}"}]},
        "model": {"class_path": "m.Net", "init_args": {"layers": "${vars.layers}", "first": "${vars.layers.0}"}},
        "lr": "${vars.rate}",
        "directory": "runs/${env:WHO}-${vars.on}-${model.first}",
        "seed": "${env:NO_SUCH_SEED:3}",
        "plain": "$5 {x}",
    }
    assert resolve(content) == {
        "model": {"class_path": "m.Net", "init_args": {"layers": [1, {"n": 8}], "first": 1}},
        "lr": 0.1,
        "directory": "runs/me: you-true-1",
        "seed": 3,
        "plain": "$5 {x}",
    }


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"a": "${b}"}, "config-reference-unknown"),
        ({"a": "${b.c}", "b": 1}, "config-reference-unknown"),
        ({"a": "${b.3}", "b": [1]}, "config-reference-unknown"),
        ({"a": "${b}", "b": "${a}"}, "config-reference-circular"),
        ({"a": {"b": "${a}"}}, "config-reference-circular"),
        ({"a": "x${b}", "b": [1]}, "config-reference-type"),
        ({"a": "${env:NO_SUCH_VARIABLE}"}, "config-reference-environment"),
        ({"a0": 1, **{f"a{n}": [f"${{a{n - 1}}}"] * 10 for n in range(1, 9)}}, "config-reference-large"),
        ({"a0": 1, **{f"a{n}": f"${{a{n - 1}}}" for n in range(1, 99)}}, "config-reference-large"),
    ],
)
def test_unresolvable_references_are_refused(content, code):
    assert MOST < 10**8
    with raises_code(code):
        resolve(content)


def test_all_references_that_cannot_be_resolved_are_one_error():
    content = {"a": "${b}", "c": ["${d.e}", {"f": "${b}"}], "g": "x${env:NO_SUCH_VARIABLE}", "h": "${c}"}
    with raises_code("config-references-unresolved", "3 problems") as raised:
        resolve(content)
    assert [problem.partition(" ")[0] for problem in raised.value.problems] == [
        "${b}",
        "${d.e}",
        "${env:NO_SUCH_VARIABLE}",
    ]


def test_an_overridden_variable_without_reference_is_refused():
    used = variables_in({"a": "${vars.fields}", "b": ["${vars.n.k}/${vars.name}", 1], "c": "${env:X}"})
    assert used == {"fields", "n", "name"}
    for key in ("vars.fields", "vars.fields.x", "vars.n.init_args.k", "seed"):
        refuse_unused_variable(key, used)
    with raises_code("config-variable-unused", "did you mean 'fields'?", key="vars.filds"):
        refuse_unused_variable("vars.filds", used)
    refuse_unused_variable("vars.width", variables_in({"init_args": "${vars}"}))
    with raises_code("config-variable-unused", "the config has no reference to vars", key="vars.lr"):
        refuse_unused_variable("vars.lr", set())


def test_secrets_of_loggers_stay_references(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    content = apply_overrides({"metric_loggers": [{"token": "${env:TOKEN}"}]}, [("lr", "${env:RATE:0.5}")])
    assert content == {"metric_loggers": [{"token": "${env:TOKEN}"}], "lr": 0.5}


def test_later_files_take_precedence_and_includes_are_relative(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "base.yaml").write_text("num_epochs: 1\ntrain: !include parts/train.yaml\nmetrics: [Accuracy]\n")
    (tmp_path / "parts" / "train.yaml").write_text("batch_size: 8\ndataset: !include data.json\n")
    (tmp_path / "parts" / "data.json").write_text('{"class_path": "mine.data"}')
    (tmp_path / "more.yaml").write_text("train: {batch_size: 16}\nmetrics: []\n")
    assert read_configs([tmp_path / "base.yaml", tmp_path / "more.yaml"]) == {
        "num_epochs": 1,
        "train": {"batch_size": 16, "dataset": {"class_path": "mine.data"}},
        "metrics": [],
    }


def test_circular_large_and_missing_includes_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("a: !include b.yaml")
    (tmp_path / "b.yaml").write_text("b: !include a.yaml")
    with raises_code("config-include", name="a.yaml"):
        read_configs([tmp_path / "a.yaml"])
    for n in range(12):
        (tmp_path / f"{n}.yaml").write_text(f"[!include {n + 1}.yaml, !include {n + 1}.yaml]")
    (tmp_path / "12.yaml").write_text("1")
    (tmp_path / "all.yaml").write_text("a: !include 0.yaml")
    with raises_code("config-include"):
        read_configs([tmp_path / "all.yaml"])
    assert MOST_INCLUDED < 2**12
    (tmp_path / "c.yaml").write_text("a: !include gone.yaml")
    with raises_code("config-file-missing"):
        read_configs([tmp_path / "c.yaml"])


def test_untrusted_files_may_not_include_files(tmp_path):
    (tmp_path / "a.yaml").write_text("a: !include /etc/hostname")
    with raises_code("config-not-yaml"):
        read_mapping(tmp_path / "a.yaml")
    with pytest.raises(Exception, match="not possible here"):
        parse_yaml("!include x")
