"""Tests of reading and writing mappings as JSON and YAML."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from learner.config.base import Config
from learner.config.mappings import json_text, read_mapping, yaml_text
from learner.config.safe_yaml import UnsafeYamlError, check_yaml_size, parse_yaml
from tests.support.codes import named_case, raises_code


def test_json_has_one_key_per_line_and_compact_lists_of_numbers():
    content = {"a": {"b": [1, 2, 3], "c": {}}, "d": [{"e": 1}, []], "é": None, "f": []}
    text = json_text(content)
    assert json.loads(text) == content
    assert text.splitlines()[:4] == ["{", '  "a": {', '    "b": [1, 2, 3],', '    "c": {}']
    assert '"é"' in text


def test_yaml_repeats_shared_values():
    """With an alias, editing one value in the file would change both."""
    shared = {"width": 3}
    text = yaml_text({"one": shared, "other": shared, "number": "1e-3", "real": 1e-3})
    assert text == "one: {width: 3}\nother: {width: 3}\nnumber: '1e-3'\nreal: 0.001\n"
    assert yaml.safe_load(text) == {"one": shared, "other": shared, "number": "1e-3", "real": 0.001}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_mapping(tmp_path / "a.json") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: {b: 1, c: 2}\nb: {b: 1}", None),
        ("a: 1\nb: 2\na: 3", "has the key 'a' twice (line 3)"),
        ("a: [{b: 1}, {b: 1, b: 2}]", "has the key 'b' twice (line 1)"),
        ("a: &a {b: 1}\nc: {<<: *a, b: 2}", None),  # a merge may override keys
        ("a: &a {b: 1}\nc: &c {<<: *a, b: 2}\nd: {<<: *c, b: 3}\ne: {<<: [*c, *a]}", None),
        ("a: {<<: {b: 1, b: 2}}", "has the key 'b' twice (line 1)"),
        ("a: &a {b: 1,\n  b: 2}\nc: {<<: *a}", "has the key 'b' twice (line 2)"),
        ("", None),
    ],
)
def test_duplicate_keys_are_refused(text, problem):
    assert check_yaml_size(text) is None
    with contextlib.nullcontext() if problem is None else pytest.raises(UnsafeYamlError, match=re.escape(problem)):
        parse_yaml(text)


def test_yaml_1_1_booleans_are_strings():
    cases = ["yes", "no", "on", "off", "Yes", "NO", "On", "y"]
    for word in cases:
        with named_case(word):
            assert parse_yaml(f"{{{word}: {word}}}") == {word: word}
            text = yaml_text({word: word, "is": [word, True]})
            expected = {word: word, "is": [word, True]}
            assert parse_yaml(text) == yaml.safe_load(text) == expected  # other programs read strings, too


def test_booleans_and_numbers():
    text = "[true, True, TRUE, false, False, FALSE, 1e-3, -.5, +1.5e3, .inf, 0x10, 1_000, null, ~, 2020-01-01]"
    values = parse_yaml(text)
    assert values[:6] == [True] * 3 + [False] * 3
    assert values[6:] == [0.001, -0.5, 1500.0, float("inf"), 16, 1000, None, None, "2020-01-01"]


def test_integers_follow_yaml_1_2():
    cases = [("0100", 100), ("08", 8), ("-007", -7), ("0o17", 15), ("0b11", 3), ("1:30", "1:30"), ("0x", "0x")]
    for text, value in cases:
        with named_case(text):
            assert parse_yaml(text) == value
            assert parse_yaml(yaml_text({"a": text})) == {"a": text}
            assert parse_yaml(yaml_text({"a": value})) == {"a": value}


def test_configs_written_by_version_0_1_0_load():
    """Version 0.1.0 used PyYAML's quoting and YAML 1.1."""
    content = {"on": "yes", "a": [True, False, None, "off", "1e-3", 1e-3, "2020-01-01"], "b": {"no": "null", "c": "~"}}
    old = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)
    assert parse_yaml(old.replace("1e-3", "'1e-3'")) == content


DAMAGED = {
    "!!int abc": "config-not-yaml",
    "!!float x": "config-not-yaml",
    "!!bool x": "config-not-yaml",
    "!!timestamp x": "config-not-yaml",
    "!!timestamp 2001-99-99": "config-not-yaml",
    "!!binary x": "config-not-yaml",
    "1" * 5000: "config-not-yaml",
    "0x" + "f" * 5000: "config-not-yaml",
    "{? [1] : 2}": "config-not-yaml",
    "[" * 30_000: "config-unsafe-yaml",
}


@pytest.mark.parametrize(("value", "code"), DAMAGED.items())
def test_malformed_yaml_values_are_refused(tmp_path, value, code):
    (tmp_path / "a.yaml").write_text(f"a: 1\nb: {value}\n")
    with raises_code(code, "a.yaml") as caught:
        read_mapping(tmp_path / "a.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1" * 1000, "config-not-json"),
        ("1" * 5000, "config-not-json"),
        ("[" * 51 + "]" * 51, "config-too-deep"),
        ("[" * 100_000 + "]" * 100_000, "config-too-deep"),
    ],
)
def test_malformed_json_values_are_refused(tmp_path, text, code):
    (tmp_path / "a.json").write_text(f'{{"a": {text}}}')
    with raises_code(code):
        read_mapping(tmp_path / "a.json")


def test_too_deep_values_of_config_objects_are_refused():
    class Anything(Config):
        value: object = None

    deep = []
    for _ in range(5000):
        deep = [deep]
    with raises_code("config-too-deep"):
        Anything(value=deep)
    with raises_code("config-too-deep"):
        Anything.from_dict({"value": deep})


def test_pipes_and_devices_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    for path in (tmp_path / "a.yaml", "/dev/zero"):
        with raises_code("config-unreadable"):
            read_mapping(path)
    with raises_code("config-unreadable"):
        read_mapping(tmp_path)


def test_standard_input_is_read_only_from_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 1\n")
    script = "from learner.config.mappings import read_mapping; print(read_mapping('/dev/stdin'))"
    command = [sys.executable, "-c", script]
    with open(tmp_path / "a.yaml") as file:
        process = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    assert process.stdout == "{'a': 1}\n"
    process = subprocess.run(command, input="a: 1\n", capture_output=True, text=True, check=False)
    assert "LearnerError: the config file /dev/stdin cannot be read: it is a pipe or a device" in process.stderr
