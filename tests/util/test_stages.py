"""The line of stages before a run's first step."""

import io

from learner.util.stages import StageLine, close_stages, end_stages, enter_stage, stage_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def seconds(*times):
    return iter(times).__next__


def test_stages_that_do_not_fit_begin_another_line():
    out = io.StringIO()
    line = StageLine(out, "learner: ", seconds(0.0, 1.0, 2.5, 4.0), 48)
    for stage in ("importing JAX", "reading the config", "reading the data"):
        line.enter(stage)
    line.end()
    line.end()
    assert out.getvalue().splitlines() == [
        "learner: importing JAX 1.0 s,",
        "  reading the config 1.5 s,",
        "  reading the data 1.5 s",
    ]


def test_pipes_get_a_line_for_each_stage():
    out = io.StringIO()
    with stage_line(out, "learner: ", seconds(0.0, 1.0, 2.5), in_pipes=True):
        enter_stage("importing JAX")
        assert out.getvalue() == "learner: importing JAX"  # at once, not when it has ended
        enter_stage("reading the config")
    assert out.getvalue() == "learner: importing JAX 1.0 s\n  reading the config 1.5 s\n"


def test_what_is_written_meanwhile_has_a_line_of_its_own():
    out = Terminal()
    with stage_line(out, "", seconds(0.0, 1.0, 2.0, 3.0)):
        enter_stage("a")
        end_stages()
        print("between", file=out)
        end_stages()
        enter_stage("b")
    assert out.getvalue().splitlines() == ["a 1.0 s", "between", "  b 1.0 s"]


def test_only_the_first_of_two_terminals_and_no_file_shows_stages():
    out, inner, file = Terminal(), Terminal(), io.StringIO()
    with stage_line(file):
        enter_stage("a")
    with stage_line(None):
        enter_stage("a")
    with stage_line(out, "", seconds(0.0, 1.0)), stage_line(inner):
        enter_stage("b")
    assert (file.getvalue(), inner.getvalue(), out.getvalue()) == ("", "", "b 1.0 s\n")


def test_nothing_is_shown_once_the_run_has_begun():
    out = Terminal()
    with stage_line(out, "", seconds(0.0, 1.0)):
        enter_stage("a")
        close_stages()
        enter_stage("b")
    assert out.getvalue() == "a 1.0 s\n"


def test_the_line_ends_where_an_error_is_raised():
    out = Terminal()
    try:
        with stage_line(out, "", seconds(0.0, 1.0)):
            enter_stage("a")
            raise ValueError
    except ValueError:
        print("error", file=out)
    assert out.getvalue().splitlines() == ["a 1.0 s", "error"]
