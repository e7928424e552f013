"""Tests of secrets in arguments of loggers: which files and messages contain them."""

import os
import stat
from pathlib import Path

import pytest
import yaml

from learner.cli.configs.config import RunConfig
from learner.loggers import Webhook
from tests.support.codes import named_case, raises_code

pytestmark = pytest.mark.usefixtures("compiled_once")

SECRETS = {name: f"sEcReT-{name}-a1b2c3" for name in ("PATH_PART", "QUERY", "HEADER", "TOKEN", "NESTED")}
LOGGERS = """
from learner.events import Listener, RunEnded, RunStarted
from learner.loggers import MetricLogger


class Fragile(MetricLogger):
    def __init__(self, token: str, options: dict[str, str] | None = None, fails: bool = True, every: int = 1):
        self.secrets = (token, *(options or {}).values())
        self.given, self.fails = (token, options), fails

    def on_event(self, event):
        if isinstance(event, RunStarted):
            with open("started.txt", "a") as file:
                file.write("started\\n" if self.given == GIVEN else f"started with {self.given}\\n")
        if isinstance(event, RunEnded) and self.fails:
            raise ValueError(f"the server does not like {self.given}")
"""


def loggers_with(values):
    """Return loggers with each of the values."""
    url = f"http://127.0.0.1:9/{values['PATH_PART']}?key={values['QUERY']}"
    headers = {"Authorization": f"Bearer {values['HEADER']}"}
    webhook = {"url": url, "headers": headers, "retries": 0}
    arguments = {"token": values["TOKEN"], "options": {"user": values["NESTED"]}}
    return [
        {"class_path": "Webhook", "init_args": webhook},
        {"class_path": "mylogger.Fragile", "init_args": arguments},
        "JsonLines",
    ]


@pytest.fixture
def config(workplace, line_config, monkeypatch):
    """Return a function that writes a config with loggers, and returns its name."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    given = SECRETS["TOKEN"], {"user": SECRETS["NESTED"]}
    (workplace / "mylogger.py").write_text(f"{LOGGERS}\n\nGIVEN = {given!r}\n")

    def write(loggers):
        Path("line.yaml").write_text(yaml.safe_dump({**line_config, "metric_loggers": loggers}))
        return "line.yaml"

    return write


def leaks(*places):
    """Return the secrets in files below these directories, and in their names."""
    leaking = set()
    for path in (path for place in places for path in Path(place).rglob("*")):
        content = str(path).encode() + (path.read_bytes() if path.is_file() else b"")
        leaking |= {(str(path), name) for name, secret in SECRETS.items() if secret.encode() in content}
    return leaking


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def run_all_commands(learner, config, *left_out):
    """Train, inspect and resume a run, and return all printed text."""
    printed = []
    commands = (
        ("fit", config),
        ("report", "run", "-o", "out/report.html"),
        ("compare", "run", "--all", "--json"),
        ("compare", "run", "--all"),
        ("summary", "run"),
        ("evaluate", "run"),
        ("export", "run", "-o", "out/weights.safetensors"),
        ("resume", "run", "--num_epochs=3"),
    )
    os.mkdir("out")
    for words in (command for command in commands if command[0] not in left_out):
        code, out, err = learner(*words)
        assert code == 0, (words, err)
        printed += [out, err]
    return "\n".join(printed)


@pytest.mark.full
def test_only_the_private_config_contains_secrets(learner, config):
    """The errors of two failing loggers quote their arguments."""
    printed = run_all_commands(learner, config(loggers_with(SECRETS)))
    assert {name for name, secret in SECRETS.items() if secret in printed} == set()
    assert leaks("run", "out") == {("run/config.yaml", name) for name in SECRETS}
    assert mode("run/config.yaml") == 0o600
    assert printed.count("Fragile failed and is detached; training continues: ValueError(") == 2
    assert "the server does not like ('***', {'user': '***'})" in printed
    assert "Webhook failed and is detached; training continues: RefusedError('http://127.0.0.1:9 cannot be" in printed
    assert Path("started.txt").read_text() == "started\n" * 2  # the resumed run has its loggers, too
    assert "class_path: mylogger.Fragile" in Path("run/config.yaml").read_text()


@pytest.mark.full
def test_environment_variables_hold_secrets(learner, config, monkeypatch):
    """Names are resolved when the loggers are made, and the saved config contains the names."""
    umask = os.umask(0o022)
    try:
        for name, secret in SECRETS.items():
            monkeypatch.setenv(f"MY_{name}", secret)
        values = {name: f"${{env:MY_{name}}}" for name in SECRETS}
        printed = run_all_commands(learner, config(loggers_with(values)), "compare", "evaluate", "export")
        assert {name for name, secret in SECRETS.items() if secret in printed} == set()
        assert leaks("run", "out") == set()
        assert mode("run/config.yaml") == 0o644
    finally:
        os.umask(umask)
    assert Path("started.txt").read_text() == "started\n" * 2
    assert "token: ${env:MY_TOKEN}" in Path("run/config.yaml").read_text()


def test_unset_variables_are_one_error(learner, config, monkeypatch):
    monkeypatch.setenv("MY_QUERY", SECRETS["QUERY"])
    code, out, err = learner("fit", config(loggers_with({name: f"${{env:MY_{name}}}" for name in SECRETS})))
    assert (code, out) == (2, "")
    missing = [name for name in SECRETS if name != "QUERY"]
    assert all(f"needs the environment variable MY_{name}: it is not set" in err for name in missing)
    assert "MY_QUERY" not in err
    assert not os.path.exists("run")


@pytest.mark.full
def test_restored_config_lacks_the_arguments_of_loggers(learner, config):
    given = [{"class_path": "mylogger.Fragile", "init_args": {"token": SECRETS["TOKEN"], "fails": False}}, "JsonLines"]
    assert learner("fit", config(given))[0] == 0
    text = Path("run/config.yaml").read_text()
    os.truncate("run/config.yaml", text.index("lr:"))
    code, _, err = learner("resume", "run", "--num_epochs=3")
    assert code == 2
    assert "run/config.yaml was cut off; it is restored from the checkpoint" in err
    assert "which keeps no arguments of metric_loggers: give them again" in err
    assert "'token'" in err
    mended = Path("run/config.yaml").read_text()
    assert text.startswith(mended[: mended.index("metric_loggers:")])
    assert yaml.safe_load(mended)["metric_loggers"] == ["mylogger.Fragile", "JsonLines"]


TOKEN = SECRETS["TOKEN"]


@pytest.mark.full
def test_errors_about_loggers_do_not_show_their_arguments(learner, config):
    cases = [
        [{"class_path": "Webhook", "init_args": {"url": f"http://a.org/{TOKEN}", "urll": TOKEN}}],
        [{"class_path": "Webhook", "init_args": {"url": f"http://a.org/{TOKEN}", "retries": {"no": TOKEN}}}],
        [{"class_path": "Webhook", "init_args": {"url": "http://a.org", "headers": f"Bearer {TOKEN}"}}],
        [{"class_path": "Webhook", "init_args": {"url": "http://a.org", "headers": [{"A": TOKEN}]}}],
        [{"class_path": "Webhook", "init_args": {"url": "http://a.org", "headers": {"A": 5, "B": TOKEN}}}],
        [{"class_path": "Webhook", "init_args": {"url": TOKEN}}],
        [{"class_path": "Webhook", "init_args": {"url": [TOKEN]}}],
        [{"class_path": "Webhook", "init_args": f"http://a.org/{TOKEN}"}],
        [{"class_path": "Webhook", "url": f"http://a.org/{TOKEN}"}],
        [{"url": f"http://a.org/{TOKEN}"}],
        [f"http://a.org/{TOKEN}"],
        f"http://a.org/{TOKEN}",
        {"url": f"http://a.org/{TOKEN}"},
        [{"class_path": "mylogger.Fragile", "init_args": {"token": TOKEN, "every": "often"}}],
        [{"class_path": "mylogger.Fragile", "init_args": {"token": TOKEN, "options": {"a": [TOKEN]}}}],
        [{"class_path": "mylogger.Fragile", "init_args": {"token": 5, "options": {"a": TOKEN}}}],
        [{"class_path": "mylogger.Gone", "init_args": {"token": TOKEN}}],
        [{"class_path": "MLflow", "init_args": {"tracking_uri": f"http//me:{TOKEN}@a.org", "retries": -1}}],
        [{"class_path": "Csv", "init_args": {"path": TOKEN, "every_steps": TOKEN}}],
    ]
    for loggers in cases:
        with named_case(loggers):
            code, out, err = learner("fit", config(loggers))
            assert (code, out) == (2, "")
            assert TOKEN not in err
            assert "logger" in err.lower() or "webhook" in err or "MLflow" in err


def test_error_of_invalid_yaml_shows_no_line(learner, config):
    text = Path(config([])).read_text()
    Path("line.yaml").write_text(f"{text}\nrenderer: {{a: Bearer: {TOKEN}\n")
    code, _, err = learner("fit", "line.yaml")
    assert code == 2
    assert TOKEN not in err
    assert "line.yaml is not YAML: " in err


@pytest.mark.parametrize(
    ("loggers", "private"),
    [
        (["JsonLines"], False),
        ([{"class_path": "TensorBoard", "init_args": {"every_steps": 5}}], False),
        ([{"class_path": "Csv", "init_args": {"path": None}}], False),
        ([{"class_path": "Csv", "init_args": {"path": "a.csv"}}], True),
        ([{"class_path": "Webhook", "init_args": {"url": "${env:HOOK}"}}], False),
        ([{"class_path": "Webhook", "init_args": {"url": "${env:HOOK}", "headers": {"A": "Bearer ${env:B}"}}}], False),
        ([{"class_path": "Webhook", "init_args": {"url": "${env:HOOK}", "headers": {"A": "b"}}}], True),
        ([{"class_path": "MLflow", "init_args": {"experiment": "learner"}}], False),  # the default
    ],
    ids=str,
)
def test_config_with_texts_of_loggers_is_private(importable, line_config, loggers, private):
    config = RunConfig(line_config | {"metric_loggers": loggers})
    assert config.is_private == private
    again = RunConfig(yaml.safe_load(config.text()))  # `learner resume` reads it with all defaults
    assert again.is_private == private
    assert yaml.safe_load(config.kept_text())["metric_loggers"] == [
        logger if isinstance(logger, str) else logger["class_path"] for logger in loggers
    ]
    shared = config.kept_text().partition("metric_loggers:")[0]
    assert config.text().startswith(shared)


def test_config_without_loggers_is_saved_unchanged(importable, line_config):
    config = RunConfig(line_config)
    assert (config.kept_text(), config.is_private) == (config.text(), False)


@pytest.mark.full
def test_variables_in_arguments_of_other_objects_are_resolved(importable, line_config, monkeypatch):
    Path("data.txt").touch()
    monkeypatch.setenv("MY_DATA", str(Path.cwd()))
    train = {"dataset": {"class_path": "mylogger.read", "init_args": {"path": "${env:MY_DATA}/data.txt"}}}
    Path("mylogger.py").write_text(
        "import mymodule, pathlib\n\ndef read(path: str):\n    assert pathlib.Path(path).exists()\n"
        "    return mymodule.rows()\n"
    )
    config = RunConfig(line_config | {"train": {**line_config["train"], **train}})
    assert config.learner().fit().stopped_by == "num_epochs"
    assert "${env:MY_DATA}/data.txt" in Path("run/config.yaml").read_text()


def test_variables_in_python(monkeypatch):
    monkeypatch.setenv("MY_HOOK", f"https://a.org/{TOKEN}")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    webhook = Webhook("${env:MY_HOOK}", headers={"Authorization": "Bearer ${env:MY_TOKEN}"})
    assert webhook._url == f"https://a.org/{TOKEN}"
    assert webhook._headers["Authorization"] == f"Bearer {TOKEN}"
    monkeypatch.delenv("MY_HOOK")
    monkeypatch.delenv("MY_TOKEN")
    with raises_code("logger-environment-missing", "MY_HOOK"):
        Webhook("${env:MY_HOOK}")
    with raises_code("logger-environment-missing", "MY_TOKEN"):
        Webhook("https://a.org", headers={"Authorization": "Bearer ${env:MY_TOKEN}"})
