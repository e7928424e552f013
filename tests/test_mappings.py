import json

import pytest
import yaml

from learner.errors import LearnerError
from learner.mappings import json_text, read_mapping, yaml_text
from learner.untrusted import said_twice, too_large


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
    with pytest.raises(LearnerError, match=r"has more than 1048576 characters"):
        read_mapping(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: {b: 1, c: 2}\nb: {b: 1}", None),
        ("a: 1\nb: 2\na: 3", "says 'a' twice (line 3)"),
        ("a: [{b: 1}, {b: 1, b: 2}]", "says 'b' twice (line 1)"),
        ("a: &a {b: 1}\nc: {<<: *a, b: 2}", None),  # that is what merging is for
        ("", None),
    ],
)
def test_a_key_that_is_said_twice(text, found):
    assert said_twice(text) == found
    assert too_large(text) is None
