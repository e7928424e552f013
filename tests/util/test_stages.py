"""Tests of the line that shows the stages before a run's first step."""

import io

from learner.util.stages import StageLine, close_stages, end_stages, enter_stage, stage_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def clock(*times):
    return iter(times).__next__


def test_stages_wrap_to_the_next_line():
    out = io.StringIO()
    line = StageLine(out, "learner: ", clock(0.0, 1.0, 2.5, 4.0), 48)
    for stage in ("importing JAX", "reading the config", "reading the data"):
        line.enter(stage)
    line.end()
    line.end()
    assert out.getvalue().splitlines() == [
        "learner: importing JAX 1.0 s,",
        "  reading the config 1.5 s,",
        "  reading the data 1.5 s",
    ]


def test_pipe_gets_a_line_for_each_stage():
    out = io.StringIO()
    with stage_line(out, "learner: ", clock(0.0, 1.0, 2.5), in_pipes=True):
        enter_stage("importing JAX")
        assert out.getvalue() == "learner: importing JAX"  # before the stage ends
        enter_stage("reading the config")
    assert out.getvalue() == "learner: importing JAX 1.0 s\n  reading the config 1.5 s\n"


def test_other_output_starts_a_new_line():
    out = Terminal()
    with stage_line(out, "", clock(0.0, 1.0, 2.0, 3.0)):
        enter_stage("a")
        end_stages()
        print("between", file=out)
        end_stages()
        enter_stage("b")
    assert out.getvalue().splitlines() == ["a 1.0 s", "between", "  b 1.0 s"]


def test_only_the_outermost_terminal_shows_stages():
    out, inner, file = Terminal(), Terminal(), io.StringIO()
    with stage_line(file):
        enter_stage("a")
    with stage_line(None):
        enter_stage("a")
    with stage_line(out, "", clock(0.0, 1.0)), stage_line(inner):
        enter_stage("b")
    assert (file.getvalue(), inner.getvalue(), out.getvalue()) == ("", "", "b 1.0 s\n")


def test_stages_end_when_the_run_begins():
    out = Terminal()
    with stage_line(out, "", clock(0.0, 1.0)):
        enter_stage("a")
        close_stages()
        enter_stage("b")
    assert out.getvalue() == "a 1.0 s\n"


def test_error_ends_the_line():
    out = Terminal()
    try:
        with stage_line(out, "", clock(0.0, 1.0)):
            enter_stage("a")
            raise ValueError
    except ValueError:
        print("error", file=out)
    assert out.getvalue().splitlines() == ["a 1.0 s", "error"]
