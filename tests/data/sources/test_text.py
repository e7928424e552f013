"""Text files: lines, and windows of bytes or characters."""

import pickle

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, Lines, TextWindows
from learner.data.sources import text as module
from learner.errors import LearnerError


@pytest.fixture
def write(tmp_path):
    def write(content, encoding="utf-8"):
        (tmp_path / "a.txt").write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return tmp_path / "a.txt"

    return write


@pytest.mark.parametrize("chunk", [1, 3, 2**24])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\ntwo\nthree", ["one", "two", "three"]),
        ("one\r\n\r\ntwo\r\n", ["one", "", "two"]),
        ("\n", [""]),
        ("ä\u2028b\nü\n", ["ä\u2028b", "ü"]),
    ],
)
def test_lines(write, monkeypatch, content, lines, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    read = Lines(write(content))
    assert len(read) == len(lines)
    assert [read[i] for i in range(len(read))] == list(read) == lines


def test_lines_that_are_not_blank_and_in_another_encoding(write):
    read = Lines(write(" \nä\n\t\nb", "latin-1"), encoding="latin-1", skip_blank=True)
    assert list(read) == ["ä", "b"]
    assert list(pickle.loads(pickle.dumps(read))) == ["ä", "b"]
    assert len(pickle.dumps(Lines(write("x" * 10_000)))) < 2000


def test_lines_with_a_batcher(write):
    loader = DataLoaderBuilder(lambda items: {"n": np.array([len(item) for item in items])}).batch_size(2)
    assert [batch["n"].tolist() for batch in loader.build(Lines(write("a\nbb\nccc")))] == [[1, 2], [3]]


def test_lines_that_are_wrong(write, tmp_path):
    read = Lines(write(b"good\nb\xffd\n"), skip_blank=True)
    assert read[0] == "good"
    with pytest.raises(LearnerError, match=r"a\.txt, line 2: 'utf-8' codec can't decode"):
        read[1]
    with pytest.raises(IndexError, match=r"which has .*: give 0 to"):
        read[2]
    for content, options, message in [
        ("", {}, "a.txt is empty"),
        (" \n\n", {"skip_blank": True}, "a.txt has no lines"),
        ("a", {"encoding": "utf-16"}, "'utf-16': Lines needs one in which a line ends with the byte 10"),
        ("a", {"encoding": "utf-9"}, "unknown encoding"),
    ]:
        with pytest.raises(LearnerError, match=message):
            Lines(write(content), **options)
    with pytest.raises(LearnerError, match=r"Lines: there is no file .*b\.txt: did you mean a\.txt"):
        Lines(tmp_path / "b.txt")


def rows_of(data):
    return [(item["text"].tolist(), item["target"].tolist()) for item in (data[i] for i in range(len(data)))]


def test_windows_of_bytes(write):
    path = write(bytes([1, 2, 255, 4, 5, 6, 7]))
    data = TextWindows(path, length=3)
    assert rows_of(data) == [([1, 2, 255], [2, 255, 4]), ([4, 5, 6], [5, 6, 7])]
    assert data[0]["text"].dtype == np.int32
    assert (data.classes, data.vocabulary) == (256, "")
    assert rows_of(TextWindows(path, length=3, stride=2)) == [([1, 2, 255], [2, 255, 4]), ([255, 4, 5], [4, 5, 6])]
    assert len(TextWindows(path, length=6)) == 1
    assert rows_of(pickle.loads(pickle.dumps(data))) == rows_of(data)
    with pytest.raises(IndexError, match=r"which has .*: give 0 to"):
        data[2]


def test_windows_of_characters(write):
    data = TextWindows(write("bäc\U0001f600b"), length=2, level="characters")
    assert (data.vocabulary, data.classes) == ("bcä\U0001f600", 4)
    assert rows_of(data) == [([0, 2], [2, 1]), ([1, 3], [3, 0])]
    assert rows_of(pickle.loads(pickle.dumps(data))) == rows_of(data)
    other = TextWindows(write("cab"), length=2, level="characters", vocabulary="cxba")
    assert rows_of(other) == [([0, 3], [3, 2])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 5}, "length is 5: .* has 5 bytes, give less"),
        ({"length": 5, "level": "characters"}, "length is 5: .* has 5 characters, give less"),
        ({"length": 0}, "length is 0: give a whole number, 1 or more"),
        ({"stride": 0}, "stride is 0"),
        ({"level": "character"}, "level is 'character': did you mean 'characters'"),
        ({"vocabulary": "ab"}, "vocabulary is for characters"),
        (
            {"level": "characters", "vocabulary": "ab"},
            "a.txt, line 2: '\\\\n' is not in the vocabulary|line 1: '\\\\n'",
        ),
        ({"level": "characters", "vocabulary": "ab\n"}, "a.txt, line 2: 'c' is not in the vocabulary"),
        ({"level": "characters", "vocabulary": ""}, "'a' is not in the vocabulary"),
        ({"level": "characters", "encoding": "utf-9"}, "unknown encoding"),
    ],
)
def test_windows_that_are_wrong(write, options, message):
    with pytest.raises(LearnerError, match=message):
        TextWindows(write("ab\nca"), **{"length": 2, **options})


def test_text_that_is_not_in_its_encoding(write):
    with pytest.raises(LearnerError, match=r"a\.txt, line 1: it is no utf-8"):
        TextWindows(write(b"abc\xff"), 2, level="characters")
