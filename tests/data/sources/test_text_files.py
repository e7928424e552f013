"""Tests of Lines and TextWindows."""

import bz2
import gzip
import pickle

import numpy as np
import pytest

from learner.data import DataLoaderBuilder, Lines, TextWindows
from learner.data.sources import text_files as module
from tests.support.codes import raises_code


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
        ("\ufeffone\n\ufefftwo", ["one", "\ufefftwo"]),  # a byte order mark, and a character
        ("\ufeff", [""]),
    ],
)
def test_lines(write, monkeypatch, content, lines, chunk):
    monkeypatch.setattr(module, "CHUNK", chunk)
    read = Lines(write(content))
    assert len(read) == len(lines)
    assert [read[i] for i in range(len(read))] == list(read) == lines


def test_skip_blank_and_encoding(write):
    read = Lines(write(" \nä\n\t\nb", "latin-1"), encoding="latin-1", skip_blank=True)
    assert list(read) == ["ä", "b"]
    assert list(pickle.loads(pickle.dumps(read))) == ["ä", "b"]
    assert len(pickle.dumps(Lines(write("x" * 10_000)))) < 2000
    assert list(Lines(write("\ufeff \na"), skip_blank=True)) == ["a"]
    assert list(Lines(write(b"\xef\xbb\xbfa"), encoding="latin-1")) == ["ï»¿a"]


def test_lines_with_a_batcher(write):
    loader = DataLoaderBuilder(lambda items: {"n": np.array([len(item) for item in items])}).batch_size(2)
    assert [batch["n"].tolist() for batch in loader.build(Lines(write("a\nbb\nccc")))] == [[1, 2], [3]]


def test_wrong_lines(write, tmp_path):
    read = Lines(write(b"good\nb\xffd\n"), skip_blank=True)
    assert read[0] == "good"
    with raises_code("data-line-unreadable", "a.txt", "2", "'utf-8'"):
        read[1]
    with pytest.raises(IndexError, match=r"which has .*: give 0 to"):
        read[2]
    for content, options, expected in [
        ("", {}, ("data-text-unusable", "a.txt", "is empty")),
        (" \n\n", {"skip_blank": True}, ("data-without-rows", "a.txt")),
        ("a", {"encoding": "utf-16"}, ("data-encoding-unusable", "utf-16")),
        ("a", {"encoding": "utf-9"}, ("data-encoding-unusable", "unknown encoding")),
    ]:
        with raises_code(*expected):
            Lines(write(content), **options)
    with raises_code("data-file-missing", "Lines", "b.txt", "a.txt"):
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
    ("options", "code", "values"),
    [
        ({"length": 5}, "data-length-too-large", ("5", "bytes")),
        ({"length": 5, "level": "characters"}, "data-length-too-large", ("5", "characters")),
        ({"length": 0}, "data-number-value", ("length", "0", "1")),
        ({"stride": 0}, "data-number-value", ("stride", "0")),
        ({"level": "character"}, "data-text-level-unknown", ("character", "'characters'")),
        ({"vocabulary": "ab"}, "data-text-vocabulary-level", ()),
        (
            {"level": "characters", "vocabulary": "ab"},
            "data-character-unknown",
            ("1", "'\\n'"),
        ),
        ({"level": "characters", "vocabulary": "ab\n"}, "data-character-unknown", ("2", "a.txt", "'c'")),
        ({"level": "characters", "vocabulary": ""}, "data-character-unknown", ("'a'",)),
        ({"level": "characters", "vocabulary": "abcb\n"}, "data-text-vocabulary-duplicate", ("'b' twice",)),
        ({"level": "characters", "encoding": "utf-9"}, "data-text-encoding", ("unknown encoding",)),
    ],
)
def test_wrong_windows(write, options, code, values):
    with raises_code(code, *values):
        TextWindows(write("ab\nca"), **{"length": 2, **options})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_byte_order_mark_is_no_character(write, encoding):
    data = TextWindows(write("\ufeffabab".encode(encoding)), 1, level="characters", encoding=encoding)
    assert (data.vocabulary, rows_of(data)) == ("ab", [([0], [1]), ([1], [0]), ([0], [1])])


@pytest.mark.parametrize(("compress", "packer"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2")])
def test_compressed_texts_are_refused(write, compress, packer):
    path = write(compress(b"one\ntwo\n" * 9))
    for source in (Lines, lambda path: TextWindows(path, 2)):
        with raises_code("data-file-packed", packer, "a.txt", "decompress it"):
            source(path)


def test_undecodable_text(write):
    with raises_code("data-text-encoding", "a.txt", line=1, encoding="utf-8"):
        TextWindows(write(b"abc\xff"), 2, level="characters")
