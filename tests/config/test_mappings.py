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


def test_json_has_a_key_on_a_line_and_lists_of_numbers_on_one():
    content = {"a": {"b": [1, 2, 3], "c": {}}, "d": [{"e": 1}, []], "é": None, "f": []}
    text = json_text(content)
    assert json.loads(text) == content
    assert text.splitlines()[:4] == ["{", '  "a": {', '    "b": [1, 2, 3],', '    "c": {}']
    assert '"é"' in text


def test_yaml_says_everything_in_full():
    """An alias would make one change of a person change two things."""
    shared = {"width": 3}
    text = yaml_text({"one": shared, "other": shared, "number": "1e-3", "real": 1e-3})
    assert text == "one: {width: 3}\nother: {width: 3}\nnumber: '1e-3'\nreal: 0.001\n"
    assert yaml.safe_load(text) == {"one": shared, "other": shared, "number": "1e-3", "real": 0.001}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_mapping(tmp_path / "a.json") == {"a": 1}


def test_files_that_are_too_large(tmp_path):
    (tmp_path / "a.json").write_text('{"a": "' + "x" * 2**20 + '"}')
    with raises_code("config-file-too-large", "1048576"):
        read_mapping(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: {b: 1, c: 2}\nb: {b: 1}", None),
        ("a: 1\nb: 2\na: 3", "has the key 'a' twice (line 3)"),
        ("a: [{b: 1}, {b: 1, b: 2}]", "has the key 'b' twice (line 1)"),
        ("a: &a {b: 1}\nc: {<<: *a, b: 2}", None),  # that is what merging is for
        ("a: &a {b: 1}\nc: &c {<<: *a, b: 2}\nd: {<<: *c, b: 3}\ne: {<<: [*c, *a]}", None),
        ("a: {<<: {b: 1, b: 2}}", "has the key 'b' twice (line 1)"),
        ("a: &a {b: 1,\n  b: 2}\nc: {<<: *a}", "has the key 'b' twice (line 2)"),
        ("", None),
    ],
)
def test_a_key_that_is_said_twice(text, found):
    assert check_yaml_size(text) is None
    with contextlib.nullcontext() if found is None else pytest.raises(UnsafeYamlError, match=re.escape(found)):
        parse_yaml(text)


def test_words_that_yaml_1_1_takes_for_booleans_are_texts():
    cases = ["yes", "no", "on", "off", "Yes", "NO", "On", "y"]
    for word in cases:
        with named_case(word):
            assert parse_yaml(f"{{{word}: {word}}}") == {word: word}
            text = yaml_text({word: word, "is": [word, True]})
            found = {word: word, "is": [word, True]}
            assert parse_yaml(text) == yaml.safe_load(text) == found  # for other programs, too


def test_booleans_and_numbers():
    said = "[true, True, TRUE, false, False, FALSE, 1e-3, -.5, +1.5e3, .inf, 0x10, 1_000, null, ~, 2020-01-01]"
    found = parse_yaml(said)
    assert found[:6] == [True] * 3 + [False] * 3
    assert found[6:] == [0.001, -0.5, 1500.0, float("inf"), 16, 1000, None, None, "2020-01-01"]


def test_whole_numbers_are_those_of_yaml_1_2():
    cases = [("0100", 100), ("08", 8), ("-007", -7), ("0o17", 15), ("0b11", 3), ("1:30", "1:30"), ("0x", "0x")]
    for text, value in cases:
        with named_case(text):
            assert parse_yaml(text) == value
            assert parse_yaml(yaml_text({"a": text})) == {"a": text}
            assert parse_yaml(yaml_text({"a": value})) == {"a": value}


def test_a_config_that_version_0_1_0_wrote():
    """It wrote with PyYAML's quotes, and read with YAML 1.1."""
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
def test_values_that_cannot_be_read(tmp_path, value, code):
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
def test_json_that_cannot_be_read(tmp_path, text, code):
    (tmp_path / "a.json").write_text(f'{{"a": {text}}}')
    with raises_code(code):
        read_mapping(tmp_path / "a.json")


def test_values_of_a_config_object_that_are_too_deep():
    class Anything(Config):
        value: object = None

    deep = []
    for _ in range(5000):
        deep = [deep]
    with raises_code("config-too-deep"):
        Anything(value=deep)
    with raises_code("config-too-deep"):
        Anything.from_dict({"value": deep})


def test_pipes_and_devices_are_refused_without_waiting_for_them(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    for path in (tmp_path / "a.yaml", "/dev/zero"):
        with raises_code("config-unreadable"):
            read_mapping(path)
    with raises_code("config-unreadable"):
        read_mapping(tmp_path)


def test_standard_input_is_a_config_where_it_is_a_file(tmp_path):
    (tmp_path / "a.yaml").write_text("a: 1\n")
    script = "from learner.config.mappings import read_mapping; print(read_mapping('/dev/stdin'))"
    command = [sys.executable, "-c", script]
    with open(tmp_path / "a.yaml") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    assert done.stdout == "{'a': 1}\n"
    done = subprocess.run(command, input="a: 1\n", capture_output=True, text=True, check=False)
    assert "LearnerError: the config file /dev/stdin cannot be read: it is a pipe or a device" in done.stderr
