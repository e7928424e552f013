"""Tests of the application log, `experiment.log`."""

import logging
import re

import pytest

from learner.loggers import close_application_log, open_application_log
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, quiet


def test_lines_have_time_level_and_text(tmp_path, caplog, capsys):
    log = open_application_log(tmp_path / "new" / "run", True)
    log.info("10 epochs of %d steps", 45)
    log.warning("zwölf → 12")
    log.debug("not told")
    close_application_log(log)
    lines = (tmp_path / "new" / "run" / "experiment.log").read_text(encoding="utf-8").splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}"
    assert re.fullmatch(f"{time} INFO  10 epochs of 45 steps", lines[0])
    assert re.fullmatch(f"{time} WARNING zwölf → 12", lines[1])
    assert len(lines) == 2
    assert caplog.records == []
    assert capsys.readouterr() == ("", "")


def test_resumed_run_appends(tmp_path):
    for text in ("first", "second"):
        log = open_application_log(tmp_path, True)
        log.info(text)
        close_application_log(log)
    assert [line[25:] for line in (tmp_path / "experiment.log").read_text().splitlines()] == [
        "INFO  first",
        "INFO  second",
    ]


def test_two_runs_at_once_do_not_mix(tmp_path):
    logs = [open_application_log(tmp_path / name, True) for name in "ab"]
    for log, name in zip(logs, "ab", strict=True):
        log.info(name)
    for log in logs:
        close_application_log(log)
    assert [(tmp_path / name / "experiment.log").read_text()[-2:] for name in "ab"] == ["a\n", "b\n"]


def test_none_disables_the_log(tmp_path, capsys, caplog):
    log = open_application_log(tmp_path / "run", None)
    log.error("nobody hears")
    close_application_log(log)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


def test_users_logger_is_used_unchanged(tmp_path):
    own = logging.Logger("own", level=logging.ERROR)
    handler = logging.FileHandler(tmp_path / "own.log")
    own.addHandler(handler)
    assert open_application_log(tmp_path / "run", own) is own
    close_application_log(own)
    own.error("still here")
    handler.close()
    assert own.handlers == [handler]
    assert own.level == logging.ERROR
    assert (tmp_path / "own.log").read_text() == "still here\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["experiment.log", False, 1, logging.INFO])
def test_wrong_types_are_refused(tmp_path, setting):
    with raises_code("logger-application-type", "application_logger", "logging.Logger"):
        open_application_log(tmp_path, setting)


def test_symbolic_link_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/experiment.log").symlink_to(tmp_path / "other")
    with raises_code("run-file-kind", "experiment.log"):
        open_application_log(tmp_path / "run", True)
    assert (tmp_path / "other").read_text() == "mine"


@pytest.mark.usefixtures("compiled_once")
def test_runs_leave_no_logger_in_the_registry(tmp_path):
    before = set(logging.root.manager.loggerDict)
    build_line(quiet(tmp_path / "run").num_steps(1)).fit(batches())
    added = set(logging.root.manager.loggerDict) - before
    assert {name for name in added if name.startswith("learner")} == set()


def test_addresses_in_errors_are_written_without_secrets(tmp_path):
    """Errors of object stores contain the address of an upload, which gives anybody write access."""

    def post(step):
        raise OSError("503 for https://me:word@storage.example.org/upload/b?name=8&upload_id=a1b2, twice")

    builder = quiet(tmp_path, saves=True)
    builder.on_epoch_end(lambda info, model: post(8))
    with pytest.raises(OSError, match="upload_id=a1b2"):
        build_line(builder).fit(batches())
    text = (tmp_path / "experiment.log").read_text()
    assert (
        text.count("503 for https://***@storage.example.org/upload/b?***") == 3
    )  # also in the traceback, with its line
    assert "a1b2" not in text
