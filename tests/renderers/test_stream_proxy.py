"""Tests of the proxies that print above a drawing."""

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
def proxy(lines):
    return StreamProxy(io.StringIO(), lines.extend)


def proxy_for(lines):
    """Return a function that makes proxies whose lines are appended here."""
    return lambda stream: StreamProxy(stream, lines.extend)


def test_lines_are_complete(proxy, lines):
    for part in ("a", "b\nc", "", "d\n\ne"):
        proxy.write(part)
    proxy.flush()
    assert lines == ["ab", "cd", ""]
    proxy.writelines(["f\n", "g\n"])
    assert lines[3:] == ["ef", "g"]


def test_lines_of_many_threads_are_not_mixed(proxy, lines):
    def write(letter):
        for _ in range(200):
            proxy.write(f"{100 * letter}\n")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lines) == sorted(100 * letter for letter in "abc" for _ in range(200))


def test_carriage_returns_keep_only_the_last_state(proxy, lines):
    for step in range(LONGEST):  # together much longer than the limit of one line
        proxy.write(f"\r{step // 100} %")
    proxy.write("\r100 %")
    proxy.write("\r\r")
    assert lines == []
    proxy.write("\n")
    assert lines == ["100 %"]


def test_endless_line_is_written_in_parts(proxy, lines):
    for _ in range(2 * LONGEST + 10):
        proxy.write(".")
    assert [len(line) for line in lines] == [LONGEST + 1, LONGEST + 1]
    proxy.finish()
    assert sum(map(len, lines)) == 2 * LONGEST + 10


def test_flushed_line_without_an_end_is_shown(lines):
    shown = []
    proxy = StreamProxy(io.StringIO(), lines.extend, shown.append)
    proxy.flush()
    proxy.write("10 %\rgo ")
    assert shown == []
    proxy.flush()
    proxy.write("on?")
    proxy.flush()
    assert (shown, lines) == (["go ", "go on?"], [])
    proxy.write("\n")
    proxy.flush()
    assert (shown, lines) == (["go ", "go on?"], ["go on?"])


def test_descriptor_is_returned_after_pending_text_is_written(lines):
    reader, writer = os.pipe()
    with open(writer, "w") as stream, open(reader) as other_end:
        proxy = StreamProxy(stream, lines.extend, make_room=lambda: stream.write("no bar: "))
        proxy.write("half ")
        assert proxy.fileno() == writer
        os.write(writer, b"by another\n")
        proxy.write("whole\n")
        proxy.finish()
        assert proxy.fileno() == writer
        stream.close()
        assert (other_end.read(), lines) == ("no bar: half by another\n", ["whole"])


def test_proxy_has_the_attributes_of_its_stream(lines):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
    proxy = StreamProxy(stream, lines.extend)
    assert (proxy.encoding, proxy.buffer, proxy.isatty()) == ("latin-1", stream.buffer, False)
    with pytest.raises(TypeError, match="must be str, not bytes"):
        proxy.write(b"no")
    proxy.finish()
    proxy.write("afterwards")
    assert (stream.buffer.getvalue(), lines) == (b"afterwards", [])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_forked_process_writes_to_the_stream_without_waiting(lines):
    reader, writer = os.pipe()
    with open(writer, "w") as stream, open(reader) as other_end:
        proxy = StreamProxy(stream, lines.extend)
        held, done = threading.Event(), threading.Event()

        def hold():
            with proxy._lock:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            proxy.write("from the child\n")
            proxy.flush()
            os._exit(0)
        done.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        stream.close()
        assert (other_end.read(), lines) == ("from the child\n", [])


def test_terminals_and_logging_handlers_are_redirected_and_restored(monkeypatch, lines):
    out, errors, elsewhere = Terminal(), Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    logger = logging.getLogger("learner.tests.above")
    handlers = [logging.StreamHandler(stream) for stream in (errors, elsewhere)]
    with contextlib.ExitStack() as stack:
        for handler in handlers:
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        redirected = redirect(out, proxy_for(lines))
        print("printed")
        print("no end", end="", file=sys.stderr)
        logger.warning(", logged")
        restore(redirected)
        logger.warning("later")
    assert (sys.stdout, sys.stderr, handlers[0].stream) == (out, errors, errors)
    assert lines == ["printed", "no end, logged"]
    assert (out.getvalue(), errors.getvalue(), elsewhere.getvalue()) == ("", "later\n", ", logged\nlater\n")


def test_streams_replaced_meanwhile_stay(monkeypatch, lines):
    out, other = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)  # like a process without a console
    redirected = redirect(out, proxy_for(lines))
    with contextlib.redirect_stdout(other):
        restore(redirected)
        print("inside")
    print("after")
    assert (other.getvalue(), out.getvalue(), lines) == ("inside\n", "after\n", [])


class Broken(io.StringIO):
    def isatty(self):
        raise OSError("gone")


def test_failing_stream_leaves_the_other(monkeypatch, lines):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Broken())
    with pytest.raises(OSError, match="gone"):
        redirect(out, proxy_for(lines))
    assert sys.stdout is out


def test_closed_stream_is_not_redirected(monkeypatch, lines):
    out, errors = Terminal(), io.StringIO()
    errors.close()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    redirected = redirect(out, proxy_for(lines))
    print("printed")
    assert (lines, sys.stderr) == (["printed"], errors)
    restore(redirected)
    assert sys.stdout is out


def test_proxy_kept_after_the_drawing_is_ignored(monkeypatch, lines):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setenv("TERM", "xterm")
    redirected = redirect(out, proxy_for(lines))
    assert not standard_output().is_terminal
    with contextlib.redirect_stdout(io.StringIO()):
        restore(redirected)
    assert sys.stdout is not out
    assert standard_output().is_terminal
    assert standard_output().file is out
    monkeypatch.setattr(Terminal, "isatty", lambda _: False)  # like a stream that a console treats as a terminal
    again = redirect(out, proxy_for(lines))
    print("printed")
    restore(again)
    assert lines == ["printed"]


def test_stream_closed_meanwhile_does_not_prevent_restoring(monkeypatch, lines):
    out, errors = Terminal(), io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(errors, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    logger, handler = logging.getLogger("learner.tests.above"), logging.StreamHandler(errors)
    logger.addHandler(handler)
    try:
        redirected = redirect(out, proxy_for(lines))
        print("no end", end="", file=sys.stderr)
        errors.close()
        restore(redirected)
    finally:
        logger.removeHandler(handler)
    assert (sys.stdout, sys.stderr, handler.stream, lines) == (out, errors, errors, ["no end"])
