"""What a program prints while something is drawn."""

import contextlib
import io
import logging
import os
import sys
import threading

import pytest

from learner.renderers.consoles import standard_output
from learner.renderers.stream_proxy import LONGEST, StreamProxy, redirect, restore


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def lines():
    return []


@pytest.fixture
def above(lines):
    return StreamProxy(io.StringIO(), lines.extend)


def to(lines):
    """Makes proxies whose lines come here."""
    return lambda stream: StreamProxy(stream, lines.extend)


def test_lines_come_whole(above, lines):
    for part in ("a", "b\nc", "", "d\n\ne"):
        above.write(part)
    above.flush()
    assert lines == ["ab", "cd", ""]
    above.writelines(["f\n", "g\n"])
    assert lines[3:] == ["ef", "g"]


def test_lines_of_many_threads_are_never_mixed(above, lines):
    def write(letter):
        for _ in range(200):
            above.write(f"{100 * letter}\n")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lines) == sorted(100 * letter for letter in "abc" for _ in range(200))


def test_a_bar_of_others_is_its_last_state_and_takes_no_room(above, lines):
    for step in range(LONGEST):  # together far more than a line without an end may have
        above.write(f"\r{step // 100} %")
    above.write("\r100 %")
    above.write("\r\r")
    assert lines == []
    above.write("\n")
    assert lines == ["100 %"]


def test_a_line_that_never_ends_is_written_in_parts(above, lines):
    for _ in range(2 * LONGEST + 10):
        above.write(".")
    assert [len(line) for line in lines] == [LONGEST + 1, LONGEST + 1]
    above.finish()
    assert sum(map(len, lines)) == 2 * LONGEST + 10


def test_a_line_without_an_end_is_shown_where_it_is_flushed(lines):
    shown = []
    above = StreamProxy(io.StringIO(), lines.extend, shown.append)
    above.flush()
    above.write("10 %\rgo ")
    assert shown == []
    above.flush()
    above.write("on?")
    above.flush()
    assert (shown, lines) == (["go ", "go on?"], [])
    above.write("\n")
    above.flush()
    assert (shown, lines) == (["go ", "go on?"], ["go on?"])


def test_who_asks_for_the_descriptor_writes_after_what_was_written(lines):
    reader, writer = os.pipe()
    with open(writer, "w") as stream, open(reader) as other_end:
        above = StreamProxy(stream, lines.extend, make_room=lambda: stream.write("no bar: "))
        above.write("half ")
        assert above.fileno() == writer
        os.write(writer, b"by another\n")
        above.write("whole\n")
        above.finish()
        assert above.fileno() == writer
        stream.close()
        assert (other_end.read(), lines) == ("no bar: half by another\n", ["whole"])


def test_it_is_the_stream_otherwise(lines):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
    above = StreamProxy(stream, lines.extend)
    assert (above.encoding, above.buffer, above.isatty()) == ("latin-1", stream.buffer, False)
    with pytest.raises(TypeError, match="must be str, not bytes"):
        above.write(b"no")
    above.finish()
    above.write("afterwards")
    assert (stream.buffer.getvalue(), lines) == (b"afterwards", [])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_forked_process_draws_nothing_and_waits_for_nobody(lines):
    reader, writer = os.pipe()
    with open(writer, "w") as stream, open(reader) as other_end:
        above = StreamProxy(stream, lines.extend)
        taken, done = threading.Event(), threading.Event()

        def hold():
            with above._lock:
                taken.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait(60)
        child = os.fork()
        if child == 0:
            above.write("from the child\n")
            above.flush()
            os._exit(0)
        done.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        stream.close()
        assert (other_end.read(), lines) == ("from the child\n", [])


def test_terminals_and_the_handlers_of_logging_are_redirected_and_restored(monkeypatch, lines):
    out, errors, elsewhere = Terminal(), Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    logger = logging.getLogger("learner.tests.above")
    handlers = [logging.StreamHandler(stream) for stream in (errors, elsewhere)]
    with contextlib.ExitStack() as stack:
        for handler in handlers:
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        redirected = redirect(out, to(lines))
        print("printed")
        print("no end", end="", file=sys.stderr)
        logger.warning(", logged")
        restore(redirected)
        logger.warning("later")
    assert (sys.stdout, sys.stderr, handlers[0].stream) == (out, errors, errors)
    assert lines == ["printed", "no end, logged"]
    assert (out.getvalue(), errors.getvalue(), elsewhere.getvalue()) == ("", "later\n", ", logged\nlater\n")


def test_what_others_have_put_there_stays(monkeypatch, lines):
    out, other = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)  # as where there is no console
    redirected = redirect(out, to(lines))
    with contextlib.redirect_stdout(other):
        restore(redirected)
        print("inside")
    print("after")
    assert (other.getvalue(), out.getvalue(), lines) == ("inside\n", "after\n", [])


class Broken(io.StringIO):
    def isatty(self):
        raise OSError("gone")


def test_where_one_stream_fails_the_other_one_stays(monkeypatch, lines):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Broken())
    with pytest.raises(OSError, match="gone"):
        redirect(out, to(lines))
    assert sys.stdout is out


def test_a_closed_stream_is_no_terminal(monkeypatch, lines):
    out, errors = Terminal(), io.StringIO()
    errors.close()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    redirected = redirect(out, to(lines))
    print("printed")
    assert (lines, sys.stderr) == (["printed"], errors)
    restore(redirected)
    assert sys.stdout is out


def test_one_that_somebody_kept_until_nothing_is_drawn_does_not_count(monkeypatch, lines):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setenv("TERM", "xterm")
    redirected = redirect(out, to(lines))
    assert not standard_output().is_terminal
    with contextlib.redirect_stdout(io.StringIO()):
        restore(redirected)
    assert sys.stdout is not out
    assert standard_output().is_terminal
    assert standard_output().file is out
    monkeypatch.setattr(Terminal, "isatty", lambda _: False)  # as one that a console was told to take for a terminal
    again = redirect(out, to(lines))
    print("printed")
    restore(again)
    assert lines == ["printed"]


def test_a_stream_that_is_closed_meanwhile_keeps_nothing_from_being_restored(monkeypatch, lines):
    out, errors = Terminal(), io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(errors, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    logger, handler = logging.getLogger("learner.tests.above"), logging.StreamHandler(errors)
    logger.addHandler(handler)
    try:
        redirected = redirect(out, to(lines))
        print("no end", end="", file=sys.stderr)
        errors.close()
        restore(redirected)
    finally:
        logger.removeHandler(handler)
    assert (sys.stdout, sys.stderr, handler.stream, lines) == (out, errors, errors, ["no end"])
