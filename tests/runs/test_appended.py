"""Tests of numbers as text, and of files that are appended to or replaced."""

import errno
import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.runs.appended import AppendedFile, final_text, refuse_special, replace, shortest, value_texts, weight_texts
from tests.support.codes import raises_code

FLOAT32 = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=20)


@given(FLOAT32)
def test_float32_values_round_trip(numbers):
    values = np.array(numbers, np.float32)
    np.testing.assert_array_equal(np.array([np.float32(text) for text in value_texts(values)]), values)


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_float64_values_round_trip(numbers):
    np.testing.assert_array_equal(np.array([float(text) for text in value_texts(np.array(numbers))]), numbers)


@given(st.one_of(st.floats(), st.integers(-(2**53), 2**53)))
def test_host_numbers_are_float64(number):
    np.testing.assert_array_equal(shortest(np.array(number)), float(number))
    np.testing.assert_array_equal(shortest(np.float64(number)), float(number))
    with np.errstate(over="ignore"):
        is_float32 = np.float32(number) == number
    if not is_float32 or float(number).is_integer():
        np.testing.assert_array_equal(shortest(number), float(number))


@given(st.floats(width=32))
def test_float_of_a_float32_keeps_its_text(number):
    """`float(loss)` is such a number."""
    np.testing.assert_array_equal(np.float32(shortest(number)), np.float32(number))
    if not number.is_integer():
        np.testing.assert_array_equal(shortest(number), shortest(np.float32(number)))


@pytest.mark.parametrize("make", [np.float32, jnp.float32, lambda x: np.array([x], np.float32)])
def test_float32_becomes_its_shortest_decimal(make):
    assert [shortest(make(x)) for x in (0.1, 16777217, 123456789)] == [0.1, 16777216.0, 123456790.0]


def test_narrower_floats_integers_and_booleans():
    assert shortest(jnp.bfloat16(0.1)) == shortest(np.float32(jnp.bfloat16(0.1)))
    assert shortest(np.float16(0.1)) == shortest(np.float32(np.float16(0.1)))
    assert [shortest(make(123456789)) for make in (np.int32, jnp.int32)] == [123456789.0] * 2
    assert shortest(True) == shortest(np.bool_(True)) == 1.0
    assert shortest(10**300) == 1e300


@pytest.mark.parametrize("value", [None, "text", [1.0], np.zeros(2), 1j, 10**400])
def test_other_values_are_refused(value):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        shortest(value)


def test_removed_or_replaced_file_is_lost(tmp_path):
    file = AppendedFile(str(tmp_path / "a.log"))
    assert not file.is_lost()  # it does not exist yet
    file.pending.append("1\n")
    file.write()
    assert not file.is_lost()
    os.rename(tmp_path / "a.log", tmp_path / "b.log")
    assert file.is_lost()
    (tmp_path / "a.log").write_text("1\n")
    assert file.is_lost()
    file.close()
    assert not file.is_lost()


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda path: path.unlink(), "run-log-removed"),
        (lambda path: os.truncate(path, 1), "run-log-changed"),
        (lambda path: (path.rename(path.with_name("b.log")), path.write_text("1\n")), "run-log-removed"),
    ],
    ids=["removed", "truncated", "replaced"],
)
def test_lines_do_not_get_lost(tmp_path, change, code, reopened):
    """An editor or a synchronization replaces a file, and the system writes on to the old one."""
    path = tmp_path / "a.log"
    file = AppendedFile(str(path), crc=0)
    file.pending.append("1\n")
    file.write()
    if reopened:
        file.close()
    change(path)
    file.pending.append("2\n")
    if not reopened:
        with raises_code(code):
            file.refuse_loss()
    elif path.exists() and path.read_text() == "1\n":
        file.write()  # equal content is as good as the old file
        assert path.read_text() == "1\n2\n"
    else:
        with raises_code(code):
            file.write()


@given(FLOAT32)
def test_float32_weights_round_trip(numbers):
    weights = np.array(numbers, np.float32)
    np.testing.assert_array_equal(np.array([np.float32(text) for text in weight_texts(weights)]), weights)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_text_has_the_fewest_digits_that_round_trip(number):
    (text,) = value_texts(np.array([number], np.float32))
    digits = len(text.lstrip("-").split("e")[0].replace(".", "").strip("0"))
    with np.errstate(over="ignore"):  # the largest numbers, rounded to fewer digits, overflow
        assert all(np.float32(f"{number:.{fewer - 1}e}") != np.float32(number) for fewer in range(1, digits))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1.0"),
        (1 / 3, "0.33333334"),
        (1e20, "1e+20"),
        (np.nan, "nan"),
        (-np.inf, "-inf"),
    ],
)
def test_texts_of_known_values(number, text):
    assert value_texts(np.array([number], np.float32)) == [text]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_integer_weights_have_no_decimal_point(dtype):
    assert weight_texts(np.array([32, 5, 0], dtype)) == ["32", "5", "0"]


def test_integer_weights_of_float64_keep_their_digits():
    assert weight_texts(np.array([16777217, 0.1])) == ["16777217", "0.1"]


@given(st.floats(allow_nan=False))
def test_final_values_round_trip(number):
    assert float(final_text(number)) == number


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_final_values_have_the_text_of_a_step(number):
    step = np.array([number], np.float32)
    assert [final_text(shortest(step))] == value_texts(step)


@pytest.mark.parametrize("text", ["a,b", "two\nlines", "\u2028", "\ud800", 'quo"te', ""])
def test_final_texts_stay_on_one_line(text):
    written = final_text(text)
    assert len((written + ",final\n").splitlines()) == 1
    assert json.loads(written) == text
    written.encode()


def test_first_write_opens_the_file_and_appends(tmp_path):
    path = tmp_path / "a.log"
    file = AppendedFile(str(path))
    assert not path.exists()
    path.write_text("old\n")
    file.pending.append("new\n")
    file.write()
    file.close()
    file.close()
    assert path.read_text() == "old\nnew\n"
    assert file.size == 8
    assert file.pending == []


def test_full_disk_loses_and_repeats_no_line(tmp_path, monkeypatch):
    file = AppendedFile(str(tmp_path / "a.log"))
    write, room = os.write, [3]

    def write_to_a_small_disk(descriptor, content):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = write(descriptor, content[: room[0]])
        room[0] -= size
        return size

    monkeypatch.setattr(os, "write", write_to_a_small_disk)
    file.pending += ["naïve\n", "second\n"]  # only the first byte of a character fits
    with pytest.raises(OSError, match=r"No space left on device.*a\.log") as caught:
        file.write()
    assert caught.value.errno == errno.ENOSPC
    assert file.size == 3
    room[0] = 1000
    file.pending.append("third\n")
    file.write()
    file.close()
    assert (tmp_path / "a.log").read_text() == "naïve\nsecond\nthird\n"
    assert file.size == 20


def test_replacing_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    replace(str(path), b"old")

    def fail(source, target):
        raise OSError(errno.EIO, "lost power")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="lost power"):
            replace(str(path), b"new")
    assert path.read_bytes() == b"old"
    replace(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_replacing_a_link_leaves_its_target(tmp_path):
    (tmp_path / "other").write_text("mine")
    for name in ("summary.json", "summary.json.partial"):
        (tmp_path / name).symlink_to(tmp_path / "other")
    replace(str(tmp_path / "summary.json"), b"new")
    assert (tmp_path / "other").read_text() == "mine"
    assert not (tmp_path / "summary.json").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "summary.json"]


def test_appending_to_a_link_or_pipe_is_refused(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "a.log").symlink_to(tmp_path / "other")
    (tmp_path / "b.log").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "c.log")
    reader = os.open(tmp_path / "c.log", os.O_RDONLY | os.O_NONBLOCK)  # without a reader, a write would block
    for name, what in (("a", "symbolic link"), ("b", "symbolic link"), ("c", "pipe or device")):
        file = AppendedFile(str(tmp_path / f"{name}.log"))
        file.pending.append("1,1\n")
        with raises_code("run-file-kind", path=str(tmp_path / f"{name}.log")) as error:
            file.write()
        assert f"is a {what}" in str(error.value)
    os.close(reader)
    assert (tmp_path / "other").read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_files_directories_and_missing_paths_are_not_special(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing", tmp_path / "file" / "below"):
        refuse_special(path)
