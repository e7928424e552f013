"""Tests of reading the lines of growing files, each once."""

import os

from learner.runs.growing import GrowingLines


def append(path, content):
    with path.open("ab") as file:
        file.write(content)


def test_complete_lines_are_read_once(tmp_path):
    path = tmp_path / "a"
    lines = GrowingLines(path)
    assert lines.read() == (False, [])
    append(path, b"1\n2\n3")
    assert lines.read() == (False, [b"1", b"2"])
    assert lines.read() == (False, [])
    append(path, b"3\n\n")
    assert lines.read() == (False, [b"33", b""])


def test_only_new_bytes_are_read(tmp_path):
    """Changes of the same length far before the last position are not noticed."""
    path = tmp_path / "a"
    path.write_bytes(b"1\n" * 200)
    lines = GrowingLines(path)
    lines.read()
    with path.open("r+b") as file:
        file.write(b"8\n9\n")
        file.seek(0, 2)
        file.write(b"3\n")
    assert lines.read() == (False, [b"3"])


def test_changed_content_with_the_same_inode_is_read_from_the_start(tmp_path):
    """File systems reuse inode numbers, and a torn line may be repaired."""
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\nto")
    lines = GrowingLines(path)
    assert lines.read() == (False, [b"1", b"2"])
    with path.open("r+b") as file:
        file.write(b"8\n9\n3\n")
    assert lines.read() == (True, [b"8", b"9", b"3"])
    with path.open("r+b") as file:
        file.write(b"8\n9\n4\n5\n")
    assert lines.read() == (True, [b"8", b"9", b"4", b"5"])


def test_truncated_file_is_read_from_the_start(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\n")
    lines = GrowingLines(path)
    lines.read()
    os.truncate(path, 2)
    assert lines.read() == (True, [b"1"])
    assert lines.read() == (False, [])


def test_replaced_file_is_read_from_the_start(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\n")
    lines = GrowingLines(path)
    lines.read()
    (tmp_path / "b").write_bytes(b"3\n4\n5\n")
    os.replace(tmp_path / "b", path)
    assert lines.read() == (True, [b"3", b"4", b"5"])


def test_last_bytes_of_a_long_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"".join(b"%04d\n" % n for n in range(1000)))
    lines = GrowingLines(path, last=12)
    assert lines.read() == (False, [b"0998", b"0999"])
    append(path, b"1000\n")
    assert lines.read() == (False, [b"1000"])
    (tmp_path / "b").write_bytes(b"torn")
    inside = GrowingLines(tmp_path / "b", last=1)
    assert inside.read() == (False, [])
    append(tmp_path / "b", b" line\nwhole\n")
    assert inside.read() == (False, [b"whole"])
    assert GrowingLines(path, last=10**6).read()[1][0] == b"0000"


def test_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "a")
    assert GrowingLines(tmp_path / "a").read() == (False, [])
