"""Tests of the command: its arguments, exit codes, output and files."""

import contextlib
import errno
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from learner.cli.configs import missing
from learner.cli.configs.missing import read_words
from learner.cli.fit import _train
from learner.cli.main import COMMANDS, _fail, main
from learner.util.disk import read_bytes
from learner.util.stages import stage_line
from tests.support.codes import named_case, raises_code
from tests.support.pseudoterminal import Terminal
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

PARAMETERS = {"class_path": "mymodule.linear", "init_args": {"size": 3}}


def saved_config():
    with open("run/config.yaml") as file:
        return yaml.safe_load(file)


def read_summary():
    with open("run/summary.json") as file:
        return json.load(file)


# -- commands --------------------------------------------------------------------------------------------------------


def test_help_of_commands(learner):
    code, out, err = learner("--help")
    assert (code, err) == (0, "")
    assert all(f"learner {command} " in out for command in COMMANDS)
    assert learner() == (code, out, err)
    for command in COMMANDS:
        code, out, err = learner(command, "--help")
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: learner {command} ")


@pytest.mark.parametrize("width", [50, 60, 80, 200])
def test_list_of_commands_fits_the_terminal(learner, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = learner("help")[1]
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(out.split())
    assert all(about in words for _, _, about in COMMANDS.values())


def test_help_of_each_command_fits_the_terminal(learner, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    wide = {command: learner(command, "--help")[1] for command in COMMANDS}
    for width in (60, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        for command in COMMANDS:
            out = learner(command, "--help")[1]
            assert max(map(len, out.splitlines())) <= width, command
            assert re.sub(r"\s", "", out) == re.sub(r"\s", "", wide[command])
    monkeypatch.setenv("COLUMNS", "60")
    lines = learner("resume", "--help")[1].splitlines()
    at = lines.index("  --resume.allow=metrics      if the metrics changed,")
    assert lines[at + 1].startswith(" " * 30 + "restart those")  # aligned with the description


def test_help_topic(learner):
    for words in (["--help=strategies"], ["--help", "strategies"]):
        code, out, _ = learner("fit", *words)
        assert (code, out.splitlines()[0].split(" is ")[0]) == (0, "strategy")
    for words in (["--help=strategy"], ["--help", "strategy"]):
        code, _, err = learner("fit", *words)
        assert (code, "'strategies'" in err) == (2, True)
    assert learner("fit", "--help", "a.yaml") == learner("fit", "a.yaml", "--help") == learner("fit", "--help")


def test_help_is_a_command(learner):
    assert learner("help") == learner("--help")
    out = learner("help")[1]
    assert all(
        re.search(rf"^  learner {name}( .*)?  {re.escape(about)}$", out, re.M) for name, (*_, about) in COMMANDS.items()
    )
    for command in ("fit", "summary"):
        assert learner("help", command) == learner(command, "--help")


def test_version(learner):
    code, out, _ = learner("--version")
    assert code == 0
    assert out.split()[0] == "learner"
    assert learner("version") == (code, out, "")


def test_invalid_arguments_are_one_message_and_exit_code_2(learner, workplace):
    cases = [
        (["fti"], "there is no command 'fti': did you mean 'fit'?"),
        (["hlep"], "there is no command 'hlep': did you mean 'help'?"),
        (["stop", "run"], "there is no command 'stop': learner ask stop DIR"),
        (["trian", "c.yaml"], "there is no command 'trian': learner fit CONFIG"),
        (["Validate", "run"], "there is no command 'Validate': learner evaluate DIR"),
        (["fit", ""], "the name of a config file is empty"),
        (["nothing"], "there is no command 'nothing': learner help lists all commands"),
        (["ask", "stop", "nowhere"], "there is no directory nowhere"),
        (["fit", "line.yaml", "--hepl"], "--hepl has no value: --hepl=VALUE, or did you mean --help?"),
        (
            ["fit", "line.yaml", "-seed", "3"],
            "learner fit takes no '-seed': keys of the config begin with two dashes: --seed",
        ),
        (["fit", "seed=3"], "there is no config file seed=3: options begin with two dashes, --seed=3"),
        (["fit", "config/digit.yaml"], "did you mean 'configs/digits.yaml'"),
        (["fit"], "learner fit needs a config file"),
        (["fit", "a.yaml", "b.yaml"], "there is no config file a.yaml"),
        (["fit", "a.yaml"], "there is no config file a.yaml"),
        (["resume"], "learner resume: the following arguments are required: DIR; learner resume DIR [--KEY"),
        (["resume", "nowhere"], "there is no directory nowhere"),
        (["resume", "."], ". is not the directory of a run"),
        (["evaluate", "nowhere"], "there is no directory nowhere"),
        (["predict", "nowhere", "x.npz"], "learner predict DIR [DATA] -o FILE"),
        (["predict", "nowhere", "x.npz", "-o", "y.txt"], "it needs the name of a file (.npz, .csv, .jsonl, .parquet)"),
        (["predict", "nowhere", "x.npz", "-o", "no/y.npz"], "in a directory that exists"),
        (["summary"], "learner summary: the following arguments are required: DIR | CONFIG; learner summary DIR"),
        (["summary", "nowhere"], "there is no directory nowhere"),
        (["summary", "."], "is not the directory of a run"),
    ]
    for words, message in cases:
        with named_case((words, message)):
            code, out, err = learner(*words)
            assert (code, out) == (2, "")
            assert err.startswith("learner: ")
            assert message in err
            assert "Traceback" not in err
            assert os.listdir() == ["mymodule.py"]


# -- fit -------------------------------------------------------------------------------------------------------------


def test_fit_writes_a_run_and_its_config(learner, config):
    """With `--resume=true`, a run starts if there is none."""
    code, out, err = learner("fit", config, "--resume=true", "--metrics=[LearningRate]", "--train.batch_size", 6)
    assert (code, err) == (0, "")
    assert "epoch 2/2" in out
    assert read_summary()["steps"] == 4
    assert saved_config()["train"]["batch_size"] == 6
    assert saved_config()["metrics"] == [{"class_path": "LearningRate"}]
    assert saved_config()["num_epochs"] == 2


def test_options_precede_or_replace_the_config(learner, config, line_config):
    code, out, _ = learner("fit", "--seed", 3, "--print_config", config)
    assert code == 0
    assert yaml.safe_load(out)["seed"] == 3
    words = [f"--{key}={json.dumps(value)}" for key, value in line_config.items()]
    assert yaml.safe_load(learner("fit", *words, "--print_config")[1]) == yaml.safe_load(out) | {"seed": 0}


def test_print_config_checks_the_options_and_our_objects_but_not_the_machine(learner, config, monkeypatch):
    words = ["--num_epochs=0", "--freeze=[", "--early_stopping.mode=up", "--lr=Cosine", "--lr.first=-1"]
    words += ["--train.batch_size=0", "--valid.batch_size=-3"]
    code, out, err = learner("fit", config, *words, "--print_config")
    assert (code, out) == (2, "")
    assert all(key in err for key in ("num_epochs is 0", "freeze: '['", "early_stopping: mode", "lr: Cosine: first"))
    assert all(key in err for key in ("train.batch_size", "valid.batch_size"))
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    words = ["--devices=4000", "--metric_loggers=WandB", "--with_file_checkpointer.directory=gs://bucket/run"]
    code, out, err = learner("fit", config, *words, "--print_config")
    assert (code, err) == (0, "")


def test_print_config_is_complete_and_round_trips(learner, config, workplace):
    code, out, err = learner("fit", config, "--optimizer.momentum=0.5", "--overwrite=true", "--print_config")
    assert (code, err) == (0, "")
    (workplace / "full.yaml").write_text(out)
    assert learner("fit", "full.yaml", "--print_config") == (0, out, "")
    assert out.splitlines()[-1].startswith("# ")
    assert yaml.safe_load(out)["optimizer"]["init_args"]["momentum"] == 0.5
    assert not (workplace / "run").exists()
    learner("fit", "full.yaml")
    assert saved_config() == yaml.safe_load(out)


def test_invalid_config_writes_nothing(learner, config, workplace):
    cases = [
        (["--num_epoch=3"], "there is no option 'num_epoch': did you mean 'num_epochs'"),
        (["--num_epochs=many"], "num_epochs is 'many': it needs a whole number"),
        (["--num_epochs=0"], "num_epochs is 0"),
        (["--metrics=F1"], "there is no 'F1': did you mean 'FBeta'"),
        (["--optimizer=SDG"], "there is no 'SDG': did you mean 'SGD'"),
        (["--optimizer.momentun=1"], "SGD has no argument 'momentun': did you mean 'momentum'"),
        (["--model=mymodule.liner"], "mymodule has no 'liner': did you mean 'linear'"),
        (["--model=broken.Model"], "broken.py, line 1"),
        (["--lr=-1"], "the learning rate is -1"),
        (["--train_step=null"], "no train_step"),
        (["--early_stopping=MetricEarlyStopping", "--early_stopping.monitor=valid/Los"], "did you mean 'valid/Loss'"),
        (["--metrics=[Accuracy]"], "the metric Accuracy needs logits"),
        (["--directory=mymodule.py"], "mymodule.py is a file"),
        (["--directory="], "directory is missing: give it in the config, or as --directory=..."),
        (["--directory=null"], "directory is missing: give it in the config, or as --directory=..."),
    ]
    for words, message in cases:
        with named_case((words, message)):
            (workplace / "broken.py").write_text("import nosuchthing\n")
            code, out, err = learner("fit", config, *words)
            assert (code, out) == (2, "")
            assert message in err
            assert "Traceback" not in err
            assert not (workplace / "run").exists()


@pytest.mark.full
def test_full_disk_has_no_traceback(learner, config, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 999, 1))
    code, _, err = learner("fit", config)
    assert (code, "Traceback" in err) == (1, False)
    assert "learner: [Errno 28] No space left on device: a checkpoint needs" in err
    assert "and 1 are free" in err
    monkeypatch.setenv("LEARNER_TRACEBACK", "1")
    with pytest.raises(OSError, match="No space left"):
        learner("resume", "run")


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.EROFS, "[Errno 30] Read-only file system"), (errno.EPERM, "[Errno 1] Operation not permitted")],
)
def test_file_that_cannot_be_written_has_no_traceback(capsys, number, text):
    assert _fail(OSError(number, os.strerror(number), "model.safetensors")) == 1
    assert capsys.readouterr().err == f"learner: {text}: 'model.safetensors'\n"


def test_a_thread_that_cannot_be_started_has_no_traceback(capsys):
    assert _fail(RuntimeError("can't start new thread")) == 1
    assert capsys.readouterr().err.splitlines() == [
        "learner: can't start new thread: the user or container has all that it may have (ulimit -u, a limit of pids)"
    ]


@pytest.mark.parametrize("value", ["1G", "1e9", "-1"])
def test_a_malformed_limit_of_files_is_an_error(learner, monkeypatch, trained, value):
    monkeypatch.setenv("LEARNER_LARGEST_FILE", value)
    code, _, err = learner("compare", "run")
    message = f"learner: the environment variable LEARNER_LARGEST_FILE is '{value}': it needs a number of bytes"
    assert (code, err) == (2, f"{message}, such as 1073741824\n")
    with raises_code("file-limit-malformed", value=value):
        read_bytes("run/journal.jsonl")


WITHOUT_DEVICES = """
import sys
from learner.cli.main import main

codes = [main(["fit", "line.yaml"])]
print("---", file=sys.stderr)
codes.append(main(["fit", "line.yaml", "--train=ours.rows"]))
print(codes)
"""


@pytest.mark.full
@pytest.mark.parametrize("platform", ["cuda", "nosuch"])
def test_platform_without_devices_has_no_traceback(config, workplace, platform):
    """JAX fails at the first use of a device if a driver or a plugin is missing. The command names the platform without
    a traceback, while an error of the user's code has one.
    """
    if platform == "cuda" and Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    (workplace / "ours.py").write_text("def rows():\n    raise RuntimeError('no such rows')\n")
    environment = os.environ | {"JAX_PLATFORMS": platform}
    command = [sys.executable, "-c", WITHOUT_DEVICES]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[2, 1]"
    of_platform, of_user = ended.stderr.split("---\n")
    assert "Traceback" not in of_platform
    assert f"JAX_PLATFORMS is '{platform}'" in of_platform
    assert "RuntimeError: no such rows" in of_user


def test_error_in_the_users_code_shows_the_users_frames(learner, config, monkeypatch):
    words = "fit", config, "--model=mymodule.linear", "--model.size=3", "--train_step=mymodule.broken_step"
    code, _, err = learner(*words)
    files = re.findall(r'File "(.*?)", line \d+, in (\w+)', err)
    assert (code, {(Path(path).name, name) for path, name in files}) == (1, {("mymodule.py", "broken_step")})
    assert re.fullmatch(r"\(\d+ frames of libraries left out; .*LEARNER_TRACEBACK=1.*\)", err.splitlines()[-1])
    assert "ZeroDivisionError: " in err
    monkeypatch.setenv("LEARNER_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        learner(*words)


def test_a_step_that_does_not_fit_the_data_shows_its_traceback_on_request(learner, config, workplace, monkeypatch):
    with (workplace / "mymodule.py").open("a") as module:
        module.write("\n\ndef wide_step(model, batch):\n    return step(model, {**batch, 'x': batch['x'][:, :2]})\n")
    words = "fit", config, "--train_step=mymodule.wide_step"
    code, _, err = learner(*words)
    assert (code, "Traceback" in err, "LEARNER_TRACEBACK=1" in err) == (2, False, True)
    monkeypatch.setenv("LEARNER_TRACEBACK", "1")
    code, _, err = learner(*words)
    assert (code, "in wide_step" in err) == (2, True)


@pytest.mark.full
def test_existing_run_is_refused_replaced_or_resumed(learner, trained):
    code, _, err = learner("fit", trained, "--seed=9")
    assert code == 2
    assert "run holds a run" in err
    assert "--overwrite=true" in err
    assert saved_config()["seed"] == 0
    assert learner("fit", trained, "--resume=true", "--num_epochs=3")[0] == 0
    assert read_summary()["epochs"] == 3
    assert learner("fit", trained, "--overwrite=true", "--seed=9")[0] == 0
    assert read_summary()["epochs"] == 2
    assert saved_config()["seed"] == 9
    assert not {"overwrite", "resume"} & set(saved_config())


@pytest.mark.full
def test_config_of_the_user_in_the_run_directory_is_kept(learner, trained):
    """A saved config, which a run has written, may be replaced."""
    text = f"# mine\n{Path(trained).read_text()}"
    Path("place").mkdir()
    Path("place/config.yaml").write_text(text)
    code, _, err = learner("fit", "place/config.yaml", "--directory=place")
    assert code == 2
    assert "no run wrote" in err
    assert Path("place/config.yaml").read_text() == text
    shutil.copy("run/config.yaml", "place/config.yaml")
    assert learner("fit", "place/config.yaml", "--directory=place", "--num_epochs=1")[0] == 0


# -- resume ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_resume_follows_the_saved_config(learner, trained):
    learner("fit", trained, "--num_epochs=4", "--directory=straight")
    code, out, err = learner("resume", "run", "--num_epochs", 4)
    assert code == 0
    assert "resumes after step 6" in out
    assert err == "learner: run/config.yaml is trusted: the code that it names is imported and run now\n"
    with open("straight/summary.json") as file:
        assert read_summary()["metrics"] == json.load(file)["metrics"]
    assert saved_config()["num_epochs"] == 4
    code, out, _ = learner("resume", "run")
    assert code == 0
    assert ("run has nothing left to do: 4 epochs, 12 steps" in out, "--num_epochs=5" in out) == (True, True)
    assert "epoch 4/4" not in out
    for _ in range(2):  # the second one changes nothing, and yet the run is not over
        code, out, _ = learner("resume", "run", "--num_epochs=9", "--with_time_limit=1e-6")
        assert (code, read_summary()["stopped_by"], "--num_epochs=" in out) == (0, "time limit", False)


@pytest.mark.full
def test_resume_from_an_earlier_checkpoint(learner, trained):
    first = [json.loads(line) for line in Path("run/journal.jsonl").read_text().splitlines()]
    out = learner("resume", "run", "--checkpoint=1")[1]
    assert ("resumes after step 3" in out, "superseded/1" in out) == (True, True)
    resumed = read_summary()
    assert (resumed["epochs"], resumed["steps"]) == (2, 6)
    last = next(event for event in reversed(first) if event["event"] == "epoch")["values"]
    assert {key: number["last"]["value"] for key, number in resumed["metrics"].items()} == last
    code, out, _ = learner("fit", trained, "--resume=true", "--num_epochs=3", "--checkpoint.step=3")
    assert (code, "resumes after step 3" in out) == (0, True)
    assert sorted(os.listdir("run/superseded")) != []
    assert learner("resume", "run", "--checkpoint=9")[0] == 2


@pytest.mark.full
@pytest.mark.parametrize("option", ["--overwrite=true", "--resume=false", "--resume=~"])
def test_resume_refuses_options_of_a_new_run(trained, learner, option):
    before = Path("run/summary.json").read_bytes()
    code, _, err = learner("resume", "run", option)
    assert code == 2
    assert option.partition("=")[0] in err
    assert Path("run/summary.json").read_bytes() == before


@pytest.mark.parametrize("words", [["resume", "run"], ["evaluate", "run"], ["export", "run", "-o", "run.mpk"]])
def test_commands_refuse_another_directory_of_a_run(learner, trained, words):
    code, _, err = learner(*words, "--directory=elsewhere")
    assert code == 2
    assert "--directory=elsewhere is not the directory of the run, run: leave it out" in err
    assert not Path("elsewhere").exists()
    assert learner(*words, "--directory=./run")[0] == 0


@pytest.mark.full
def test_hint_to_resume_a_run_that_stopped_early(learner, trained):
    stopping = "--early_stopping={monitor: train/Loss, mode: max, patience: 1}"
    assert learner("fit", trained, "--overwrite=true", "--num_epochs=5", stopping)[0] == 0
    stopped = read_summary()["epochs"]
    assert stopped < 5
    out = learner("resume", "run")[1]
    (option,) = re.findall(r"--\S+=\S+", out.partition("nothing left to do")[2])
    assert "--num_epochs=" + str(stopped + 1) in learner("resume", "run", option, f"--num_epochs={stopped}")[1]
    assert learner("resume", "run", option)[0] == 0
    assert read_summary()["epochs"] == 5


@pytest.mark.parametrize("left", [None, 0, 40])
@pytest.mark.full
def test_damaged_config_is_restored(learner, trained, left):
    with open("run/config.yaml") as file:
        text = file.read()
    if left is None:
        os.remove("run/config.yaml")
    else:
        os.truncate("run/config.yaml", left)
    code, _, err = learner("resume", "run", "--num_epochs=3")
    assert code == 0, err
    damage = "cut off" if left else "missing or empty"
    assert f"run/config.yaml was {damage}; it is restored from the checkpoint of step 6" in err
    with open("run/config.yaml") as file:
        assert file.read().replace("num_epochs: 3", "num_epochs: 2") == text


@pytest.mark.full
def test_resume_allows_changes(learner, trained):
    code, _, err = learner("resume", "run", "--num_epochs=3", "--optimizer=Adam")
    assert code == 2
    assert "resume(allow='optimizer') or --resume.allow=optimizer" in err
    assert learner("resume", "run", "--num_epochs=3", "--optimizer=Adam", "--resume.allow=optimizer")[0] == 0
    assert "resume" not in saved_config()
    assert learner("resume", "run", "--num_epochs=4", "--resume.allow=[metrics, logs]")[0] == 0
    assert read_summary()["epochs"] == 4


@pytest.mark.full
def test_edited_config_is_used(learner, trained):
    with open("run/config.yaml") as file:
        text = file.read()
    with open("run/config.yaml", "w") as file:
        file.write(text.replace("num_epochs: 2", "num_epochs: 3"))
    code, _, err = learner("resume", "run")
    assert code == 0, err
    assert ("mended" in err, read_summary()["epochs"]) == (False, 3)


@pytest.mark.full
def test_resume_of_a_moved_directory(learner, trained):
    os.rename("run", "elsewhere")
    assert learner("resume", "elsewhere", "--num_epochs=3")[0] == 0
    assert not os.path.exists("run")


EVALUATED = "LearnerBuilder('run').checkpoint(%s).build(model, valid_step=step)"


@pytest.mark.parametrize(
    ("command", "call"),
    [
        (
            ["resume", "run"],
            "LearnerBuilder('run').num_epochs(...).resume().build(model, optimizer, lr).fit(train, valid)",
        ),
        (["evaluate", "run"], EVALUATED % "'latest'" + ".evaluate(valid)"),
        (["evaluate", "run", "--checkpoint=best"], EVALUATED % "'best'" + ".evaluate(valid)"),
        (["evaluate", "run", "--checkpoint.step=6"], EVALUATED % "step=6" + ".evaluate(valid)"),
        (["evaluate", "run", "--split=test"], EVALUATED % "'best'" + ".evaluate(valid, split='test')"),
        (["predict", "run", "x.npz", "-o", "y.npz", "--checkpoint=2"], EVALUATED % 2 + ".predict(data)"),
        (["export", "run", "-o", "x.safetensors"], "load_checkpoint('run', 'latest', model).model"),
    ],
)
def test_run_from_python_is_refused_with_the_call_in_python(learner, trained, command, call):
    shutil.rmtree("run/checkpoint")  # its checkpoints contain the config
    os.remove("run/config.yaml")
    code, _, err = learner(*command)
    assert code == 2
    assert "run has no config.yaml: the run was started from Python" in err
    assert f"\n    {call}" in err


@pytest.mark.parametrize(
    ("name", "exit_code", "on_sigterm"),
    some(
        [(*signal, how) for signal in (("SIGINT", 130), ("SIGTERM", 143)) for how in ("exit", "return")],
        {("SIGTERM", 143, "return")},  # SIGINT: test_stages_and_ctrl_c_on_a_terminal
    ),
)
def test_signals_end_the_command_with_a_hint_to_resume(learner, config, workplace, name, exit_code, on_sigterm):
    (workplace / "hooks.py").write_text(
        f"import os, signal\ndef stop(info, model):\n    os.kill(os.getpid(), signal.{name})\n"
    )
    number = getattr(signal, name)
    before = signal.signal(number, signal.default_int_handler)
    try:
        code, _, err = learner(
            "fit", config, "--num_epochs=50", "--on_epoch_end=hooks.stop", f"--on_sigterm={on_sigterm}"
        )
        assert code == exit_code
        assert err == "learner: interrupted; resume with: learner resume run\n"
        assert read_summary()["epochs"] < 50
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    code, _, err = learner("resume", "run", "--num_epochs=3", "--on_epoch_end=null")
    assert code == 0
    assert read_summary()["epochs"] == 3


def test_ctrl_c_before_a_run(learner, config, workplace):
    (workplace / "slow.py").write_text("raise KeyboardInterrupt\n")
    code, out, err = learner("fit", config, "--model=slow.Model")
    assert (code, out, err) == (130, "", "learner: interrupted\n")


def test_ctrl_c_during_a_stage_starts_a_new_line(monkeypatch, tmp_path):
    class Config:
        directory, resumes = str(tmp_path), False

        def learner(self):
            raise KeyboardInterrupt

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with stage_line(out, "", iter([0.0, 1.0]).__next__):
        assert _train(Config()) == 130
    assert out.getvalue() == "reading the data 1.0 s\nlearner: interrupted\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signal_during_an_import_ends_the_command(learner, config, monkeypatch):
    """Python drops exceptions that a handler raises inside `__del__`, or while an extension module starts."""

    class Dropping:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigpending()  # the handler runs at the end of this call

    def drop(command, words):
        Dropping()
        return read_words(command, words)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(missing, "read_words", drop)
    try:
        code, _, err = learner("fit", config)
        assert (code, err.splitlines()[-1]) == (143, "learner: interrupted")
        assert not os.path.exists("run")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_during_the_import_of_jax_ends_the_command(learner, config, monkeypatch):
    """In nanobind's modules an exception of the handler would abort the process."""
    before, import_module, raised = signal.signal(signal.SIGTERM, signal.SIG_DFL), importlib.import_module, []

    def import_with_signal(name, *arguments, **further):
        if name == "learner.builder":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException as error:
                raised.append(error)
        return import_module(name, *arguments, **further)

    monkeypatch.setattr(importlib, "import_module", import_with_signal)
    try:
        code, _, err = learner("fit", config)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, err.splitlines()[-1], raised) == (143, "learner: interrupted", [])


def test_sigterm_before_a_run(learner, config, workplace):
    """The signal arrives while a module of the user is imported, whose other errors have their own message."""
    press = [f"os.kill(os.getpid(), signal.{name})\n" for name in ("SIGUSR1", "SIGTERM")]  # the first has no effect
    (workplace / "slow.py").write_text("import os, signal\n\n" + "".join(press))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert learner("fit", config, "--model=slow.Model") == (143, "", "learner: interrupted\n")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


# -- evaluate, predict, summary --------------------------------------------------------------------------------------


def test_evaluate(learner, trained):
    metric = read_summary()["metrics"]["valid/Loss"]
    code, out, _ = learner("evaluate", "run")
    assert code == 0
    checkpoint, values = out.splitlines()
    assert checkpoint == "checkpoint: step 6, epoch 2"
    name, value = values.split()
    assert name == "valid/Loss"
    assert float(value) == pytest.approx(metric["last"]["value"], rel=1e-4)
    files = sorted(os.listdir("run"))
    code, out, _ = learner("evaluate", "run", "--checkpoint=best")
    assert float(out.split()[-1]) == pytest.approx(metric["best"]["value"], rel=1e-4)
    assert sorted(os.listdir("run")) == files
    code, _, err = learner("evaluate", "run", "--checkpoint=9")
    assert code == 2
    assert "epoch" in err


LABELS = """
import jax.numpy as jnp
from learner import ClassificationOutput

def step(model, batch):
    scores = batch["x"] @ model["w"] - 1
    return ClassificationOutput.from_logits(jnp.stack([-scores, scores], -1), (batch["y"] > 1).astype(jnp.int32))
"""


@pytest.fixture(scope="module")
def _classified(shared_workplace, compiled_once):
    """Train a run with metrics that are tables once."""
    (shared_workplace / "labels.py").write_text(LABELS)
    tables = [{"class_path": "ConfusionMatrix", "init_args": {"classes": 2}}]
    tables += [{"class_path": "Recall", "init_args": {"classes": 2, "average": "none"}}]
    words = ["--train_step=labels.step", "--valid_step=labels.step", f"--metric_valid={json.dumps(tables)}"]
    with contextlib.chdir(shared_workplace), contextlib.redirect_stdout(io.StringIO()):
        assert main(["fit", "line.yaml", *words, "--lr=0.001", "--directory=classified"]) == 0
    for name in ("mymodule", "labels"):
        del sys.modules[name]  # each test imports another one
    return shared_workplace / "classified"


@pytest.fixture
def classified(_classified, config):
    """Copy the run with metrics that are tables to `run`."""
    Path("labels.py").write_text(LABELS)
    shutil.copytree(_classified, "run")


@pytest.mark.full
def test_evaluate_prints_tables(learner, classified):
    """Tables follow the numbers."""
    for words in ([], ["--split=test", "--valid.batch_size=4"]):
        code, out, err = learner("evaluate", "run", *words)
        assert code == 0, err
        split = "test" if words else "valid"
        lines = out.splitlines()
        assert [line.split()[0] for line in lines[1:-7]] == [f"{split}/Loss"]
        # scores are near -1, so that every prediction is 0; 8 of the 12 targets are 1
        assert lines[-7:] == [
            f"  {split} Confusion Matrix:",
            "    label  0  1",
            "    0      4  0",
            "    1      8  0",
            f"  {split} Recall (per class):",
            "    0  1.0000",
            "    1  0.0000",
        ]


@pytest.mark.full
def test_evaluate_as_json(learner, classified):
    """The line is one object, and tables are lists of numbers."""
    code, out, _ = learner("evaluate", "run", "--json")
    assert code == 0
    values = json.loads(out)
    assert values.keys() == {"epoch", "step", "valid/Loss", "valid/Confusion Matrix", "valid/Recall (per class)"}
    assert (values["epoch"], values["step"]) == (2, 6)
    assert values["valid/Confusion Matrix"] == [[4, 0], [8, 0]]
    assert values["valid/Recall (per class)"] == [1.0, 0.0]
    assert values["valid/Loss"] == read_summary()["metrics"]["valid/Loss"]["last"]["value"]
    test_split = json.loads(learner("evaluate", "run", "--split=test", "--valid.batch_size=4", "--json")[1])
    assert test_split["test/Confusion Matrix"] == [[4, 0], [8, 0]]


@pytest.mark.full
def test_export_model(learner, trained):
    pytest.importorskip("flatbuffers")
    import jax.export
    from safetensors.numpy import load_file

    code, _, err = learner("export-model", "run", "out")
    assert (code, "--inputs is missing" in err) == (2, True)
    lines = ["def predict(model, x):", "    return {name: w.sum() + x for name, w in model.items()}"]
    lines += ["def of_batch(model, batch):", "    return predict(model, batch['x'])"]
    Path("applied.py").write_text("\n".join(lines))
    words = "--inputs=x", "--function=applied.predict", "--platforms=cpu"
    code, out, err = learner("export-model", "run", "out", *words)
    assert (code, out.startswith("out: ")) == (0, True), err
    assert sorted(os.listdir("out")) == ["README.md", "model.jaxexport", "weights.safetensors"]
    assert learner("export-model", "run", "fields", "--inputs=x,", "--function=applied.of_batch")[0] == 0
    program = jax.export.deserialize(bytearray(Path("fields/model.jaxexport").read_bytes()))
    weights = load_file("fields/weights.safetensors")
    (_, inputs), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    x = np.ones((3, *inputs["x"].shape[1:]), inputs["x"].dtype)
    outputs = jax.tree.leaves(program.call(weights, {"x": x}))
    np.testing.assert_allclose(outputs, [weights[name].sum() + x for name in sorted(weights)])
    code, _, err = learner("export-model", "run", "out", "--inputs=x,z")
    assert (code, "'x,z'" in err) == (2, True)
    code, _, err = learner("export-model", "run", "out", "--inputs=x", "--format=onxn")
    assert (code, "did you mean 'onnx'" in err) == (2, True)
    pytest.importorskip("jax2onnx", reason="the extra onnx is not installed")
    code, _, err = learner("export-model", "run", "out", *words[:2], "--format=onnx")
    assert code == 0, err
    assert sorted(os.listdir("out")) == ["README.md", "model.onnx"]


def test_several_configs(learner, config):
    Path("rate.yaml").write_text("vars: {rate: 0.01}\nlr: ${vars.rate}\n")
    code, out, _ = learner("fit", config, "rate.yaml", "--print_config", "--vars.rate=0.5")
    assert (code, yaml.safe_load(out)["lr"]) == (0, 0.5)
    assert "vars" not in yaml.safe_load(out)
    code, _, err = learner("fit", config, "rate.yaml", "--print_config", "--vars.rat=0.5")
    assert (code, "did you mean 'rate'" in err) == (2, True)
    code, _, err = learner("fit", config, "rat.yaml")
    assert (code, "did you mean 'rate.yaml'" in err) == (2, True)


@pytest.mark.full
def test_evaluate_into_the_run(learner, trained):
    best = read_summary()["metrics"]["valid/Loss"]["best"]
    code, _, err = learner("evaluate", "run", "--split=test")
    assert (code, "give the data, --data=PATH" in err) == (2, True)
    code, out, _ = learner("evaluate", "run", "--split=test", "--valid.batch_size=4")
    head, line = out.splitlines()
    assert (code, head) == (0, f"checkpoint/{best['step']} (epoch {best['epoch']}, best)")
    assert float(line.split()[1]) == pytest.approx(best["value"], rel=1e-4)
    assert read_summary()["metrics"]["test/Loss"]["last"]["step"] == best["step"]
    _, out, _ = learner("compare", "run")
    assert "test/Loss" in out
    code, out, _ = learner("evaluate", "run", "--follow")
    assert out.count("checkpoint/") == len(read_summary()["checkpoints"])
    assert "eval/Loss" in read_summary()["metrics"]
    assert learner("evaluate", "run", "--follow")[1] == ""
    code, _, err = learner("evaluate", "run", "--split=train", "--valid.batch_size=4")
    assert (code, "'train'" in err) == (2, True)


@pytest.mark.full
@pytest.mark.filterwarnings("always:the evaluation")
def test_evaluate_into_a_run_that_cannot_be_written_to(learner, trained, monkeypatch):
    """The values are printed, but a script must not take them for recorded."""

    def denied(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("learner.training.evaluation.record_evaluation", denied)
    for word in ("--split=test", "--follow"):
        code, out, err = learner("evaluate", "run", word, "--valid.batch_size=4")
        assert (code, "Loss " in out) == (1, True)
        assert "the evaluation could not be written to " in err
        assert "Read-only file system" in err


@pytest.mark.full
def test_evaluate_several(learner, trained):
    several = "{dev: {dataset: mymodule.rows, batch_size: 12}, ood: {dataset: mymodule.rows, batch_size: 5}}"
    code, out, _ = learner("evaluate", "run", f"--valid={several}")
    assert code == 0
    checkpoint, *lines = out.splitlines()
    assert checkpoint.startswith("checkpoint: step ")
    values = dict(line.split() for line in lines)
    assert values.keys() == {"valid-dev/Loss", "valid-ood/Loss"}
    assert float(values["valid-dev/Loss"]) == pytest.approx(float(values["valid-ood/Loss"]), rel=1e-5)


@pytest.mark.full
def test_evaluate_without_validation_data_or_checkpoint(learner, config):
    learner("fit", config, "--valid=null", "--with_file_checkpointer=null")
    code, _, err = learner("evaluate", "run", "--valid_step=null")
    assert code == 2
    assert "run has no validation data" in err
    code, _, err = learner("evaluate", "run", "--valid.dataset=mymodule.rows", "--valid.batch_size=4")
    assert code == 2
    assert "checkpoint" in err


def test_failed_predictions_keep_the_old_file(learner, trained, workplace, monkeypatch):
    def fail(file, **arrays):
        file.write(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    np.savez(workplace / "data.npz", x=np.ones((7, 3), np.float32), y=np.ones(7, np.float32))
    (workplace / "out.npz").write_bytes(b"the old ones")
    monkeypatch.setattr(np, "savez", fail)
    assert learner("predict", "run", "data.npz", "-o", "out.npz")[0] == 1
    assert (workplace / "out.npz").read_bytes() == b"the old ones"
    assert [path.name for path in workplace.glob("out*")] == ["out.npz"]


@pytest.mark.full
def test_read_only_run_is_evaluated(learner, trained, workplace, monkeypatch):
    np.savez(workplace / "data.npz", x=np.ones((7, 3), np.float32), y=np.ones(7, np.float32))
    values = learner("evaluate", "run")
    access, run = os.access, str(workplace / "run")

    def read_only(path, mode, **rest):
        return not (mode & os.W_OK and os.path.realpath(path).startswith(run)) and access(path, mode, **rest)

    monkeypatch.setattr(os, "access", read_only)
    assert learner("evaluate", "run") == values
    assert values[0] == 0
    assert learner("predict", "run", "data.npz", "-o", "out.npz")[0] == 0
    for words in (["predict", "run", "data.npz", "-o", "run/out.npz"], ["export", "run", "-o", "run/model.mpk"]):
        with monkeypatch.context() as patch:
            patch.setattr("learner.training.evaluation.Evaluator.predictions", None)  # refused before it computes
            patch.setattr("learner.cli.export.load_run", None)
            code, _, err = learner(*words)
        assert (code, f"the output {words[-1]} cannot be written: the directory run is not writable" in err) == (
            2,
            True,
        )
    code, _, err = learner("resume", "run", "--num_epochs=9")
    assert (code, "run is not writable" in err) == (2, True)
    (workplace / "run" / "config.yaml").unlink()

    def denied(path, content):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("learner.cli.configs.saved_configs.replace", denied)
    code, _, err = learner("evaluate", "run")
    assert (code, "config.yaml is missing or cut off, and cannot be restored" in err) == (2, True)


def test_predict(learner, trained, workplace):
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    np.savez(workplace / "data.npz", x=x, y=x.sum(1))
    code, out, _ = learner("predict", "run", "data.npz", "-o", "out.npz")
    assert code == 0
    assert "predictions" in out
    with np.load("out.npz") as outputs:
        assert set(outputs) == {"predictions", "targets"}
        np.testing.assert_array_equal(outputs["targets"], x.sum(1))
        weights = np.linalg.lstsq(x, outputs["predictions"], rcond=None)[0]
        np.testing.assert_allclose(x @ weights, outputs["predictions"], rtol=1e-4)
        first = outputs["predictions"]
    (workplace / "data.csv").touch()
    code, _, err = learner("predict", "run", "data.csv", "-o", "again.npz")
    assert (code, "dataset: {class_path: csv, init_args: {path: data.csv}}" in err) == (2, True)
    like = '--valid.dataset={"class_path": "csv", "init_args": {"path": "x.csv", "fields": {"x": ["a", "b", "c"]}}}'
    (workplace / "rows.csv").write_text("a,c,b\n" + "".join(f"{a},{c},{b}\n" for a, b, c in x))
    words = "rows.csv", "-o", "rows.npz", "--predict_step=mymodule.prediction", like
    assert learner("predict", "run", *words)[0] == 0
    with np.load("rows.npz") as outputs:
        np.testing.assert_allclose(outputs["predictions"], first, rtol=1e-6)
    code, _, err = learner("predict", "run", "run/config.yaml", "-o", "again.npz")
    assert (code, "run/config.yaml is the config of a run; it needs the content of `valid` alone" in err) == (2, True)
    np.savez(workplace / "unlabelled.npz", x=x)
    code, _, err = learner("predict", "run", "unlabelled.npz", "-o", "again.npz")
    assert (code, "predict_step" in err) == (2, True)
    assert learner("predict", "run", "unlabelled.npz", "-o", "again.npz", "--predict_step=mymodule.prediction")[0] == 0
    with np.load("again.npz") as outputs:
        assert set(outputs) == {"predictions"}
        np.testing.assert_allclose(outputs["predictions"], first, rtol=1e-6)
    assert learner("predict", "run", "data.npz", "-o", "table.csv")[0] == 0
    header, *lines = (workplace / "table.csv").read_text().splitlines()
    assert header == "predictions,targets"
    np.testing.assert_array_equal(np.float32([line.split(",")[0] for line in lines]), first)
    assert learner("predict", "run", "-o", "own.npz")[0] == 0  # the validation data of the run
    config = workplace / "run" / "config.yaml"
    several = "valid: {a: {dataset: mymodule.rows, batch_size: 4}, b: {dataset: mymodule.rows, batch_size: 4}}\n"
    config.write_text(re.sub(r"(?m)^valid:\n(  .*\n)+", several, config.read_text()))
    code, _, err = learner("predict", "run", "-o", "own.npz")
    assert (code, "several validation sets (a, b)" in err) == (2, True)
    stored = "{class_path: mymodule.stored, init_args: {path: data.npz}}"
    (workplace / "data.yaml").write_text(f"dataset: {stored}\nbatch_size: 2")
    code, _, err = learner("predict", "run", "data.yaml", "--output=again.npz")
    assert (code, "Traceback" in err) == (0, False)
    with np.load("again.npz") as outputs:
        np.testing.assert_allclose(outputs["predictions"], first, rtol=1e-6)


@pytest.mark.full
@pytest.mark.filterwarnings("always:the data")
def test_predictions_not_in_the_order_of_the_rows_are_a_warning(learner, trained, workplace):
    cases = [
        ("batch_size: 5\ndrop_last: true", "leaves out the rows behind the last full batch", 10),
        ("shuffle: true", "is shuffled, and its predictions come in that order", 12),
    ]
    for options, warning, count in cases:
        (workplace / "data.yaml").write_text(f"dataset: mymodule.rows\n{options}")
        code, _, err = learner("predict", "run", "data.yaml", "--output=out.npz")
        assert (code, f"learner: the data {warning}" in err) == (0, True), err
        with np.load("out.npz") as outputs:
            assert len(outputs["predictions"]) == count


@pytest.mark.full
def test_predict_batches_of_a_user_function(learner, trained, workplace):
    (workplace / "data.yaml").write_text("class_path: mymodule.batches")
    assert learner("predict", "run", "data.yaml", "-o", "out.npz")[0] == 0
    with np.load("out.npz") as outputs:
        assert outputs["predictions"].shape == (12,)


@pytest.mark.full
def test_predict_needs_outputs_per_row(learner, config, workplace):
    (workplace / "own.py").write_text(
        "import dataclasses, jax\n"
        "@jax.tree_util.register_dataclass\n@dataclasses.dataclass\nclass Output:\n    loss: object\n"
        "def step(model, batch):\n    return Output(((batch['x'] @ model['w'] - batch['y']) ** 2).mean())\n"
    )
    learner("fit", config, "--valid_step=own.step")
    np.savez(workplace / "data.npz", x=np.ones((3, 3), np.float32), y=np.ones(3, np.float32))
    code, _, err = learner("predict", "run", "data.npz", "-o", "out.npz")
    assert code == 2
    assert "the output of the step that predicts (loss) has no field with a row for each row of data" in err


def test_evaluate_refuses_a_run_that_never_started(learner, trained):
    kept = Path("run/config.yaml").read_text()
    shutil.rmtree("run")
    os.mkdir("run")
    Path("run/config.yaml").write_text(kept)
    code, _, err = learner("evaluate", "run")
    assert code == 2
    assert "run holds no run" in err


@pytest.mark.full
def test_predict_from_a_missing_file(learner, trained):
    for name in ("data.npz", "data.csv", "data.yaml", "run"):
        code, _, err = learner("predict", "run", name, "-o", "out.npz")
        missing = f"DATA: there is no file {name}" if name != "run" else "a YAML file names other data"
        assert (code, missing in err, "Errno" in err) == (2, True, False), err


def test_predict_from_invalid_data(learner, trained, workplace):
    for content, message in (
        (b"not a zip file", "data.npz cannot be read as .npz"),
        ({"x": np.array([object()])}, "data.npz cannot be read as .npz"),
        ({"x": np.zeros((3, 3), np.float32), "y": np.zeros(2, np.float32)}, "x [3, 3], y [2]"),
    ):
        if isinstance(content, dict):
            np.savez(workplace / "data.npz", **content)
        else:
            (workplace / "data.npz").write_bytes(content)
        code, _, err = learner("predict", "run", "data.npz", "-o", "out.npz")
        assert (code, message in err) == (2, True), err
        assert not os.path.exists("out.npz")


def test_summary(learner, trained):
    code, out, err = learner("summary", "run")
    assert (code, err) == (0, "")
    assert "2 epochs, 6 steps" in out
    assert "valid/Loss" in out
    assert re.search(r"^time: [0-9.]+ m?s: compiling ", out, re.MULTILINE)
    table = out.splitlines()[1:4]
    assert [line.split()[0] for line in table] == ["metric", "valid/Loss", "train/Loss"]
    os.remove("run/summary.json")
    code, out, _ = learner("summary", "run")
    assert code == 0
    head, *lines = out.splitlines()
    assert head == "run: there is no summary.json, so the values come from the journal (ended: num_epochs)"
    assert lines[:3] == table


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a directory in which even root cannot create files")
def test_error_of_creating_a_directory_is_one_line(learner, config):
    for key in ("directory", "with_file_checkpointer.directory"):
        code, _, err = learner("fit", config, f"--{key}=/proc/run/a")
        assert code == 2
        assert err.startswith("learner: the directory /proc/run/a ")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "damage",
    [{"metrics": None}, {"epochs": "2"}, {"metrics": {"a/b": {}}}, {"metrics": {"a/b": {"best": 1}}}, {"artifacts": 3}],
)
def test_damaged_summary_is_refused(learner, workplace, damage):
    good = {"stopped_by": "x", "epochs": 1, "steps": 1, "metrics": {}, "checkpoints": [], "artifacts": []}
    (workplace / "run").mkdir()
    (workplace / "run/summary.json").write_text(json.dumps(good))
    assert learner("summary", "run")[0] == 0
    (workplace / "run/summary.json").write_text(json.dumps({**good, **damage}))
    code, _, err = learner("summary", "run")
    assert code == 2
    assert "run/summary.json is damaged" in err
    assert "Traceback" not in err


def test_control_characters_in_files_are_replaced(learner, workplace):
    hostile = "\x1b]0;owned\x07\x1b[2J"
    point = {"value": hostile, "epoch": hostile, "step": 1}
    metric = {"unit": hostile, "higher_is_better": True, "best": point, "last": point}
    summary = {"stopped_by": hostile, "epochs": 1, "steps": 1, "metrics": {f"a/{hostile}": metric}}
    summary |= {"checkpoints": [{"path": hostile, "epoch": hostile}], "artifacts": [hostile]}
    epoch = {"event": "epoch", "epoch": 1, "step": 1, "values": {f"a/{hostile}": 0.5, "a/text": hostile}}
    (workplace / "run").mkdir()
    (workplace / "run/summary.json").write_text(json.dumps(summary))
    (workplace / "run/journal.jsonl").write_text(json.dumps(epoch) + "\n")
    (workplace / "named.yaml").write_text(f"{json.dumps(hostile)}: 1\nmodel: {json.dumps(hostile)}\n")
    results = [learner("summary", "run")]
    os.remove("run/summary.json")
    results += [learner("summary", "run"), learner("fit", "named.yaml"), learner("evaluate", f"no{hostile}where")]
    assert [code for code, _, _ in results] == [0, 0, 2, 2]
    for _, out, err in results:
        assert "2J" in out + err
        assert all(line.isprintable() for line in (out + err).split("\n"))


@pytest.mark.full
def test_summary_imports_no_module_from_the_run_directory(learner, trained, workplace):
    """A user may inspect a run from an untrusted source in its directory."""
    for name in ("rich", "yaml", "difflib", "own"):
        Path("run", f"{name}.py").write_text(f"open({str(workplace / 'imported')!r}, 'w')\n")
    program = workplace / "program.py"  # like an installed command, it has another directory on the path
    program.write_text(
        "import sys\nfrom learner.cli.main import main\n"
        "sys.stdout.isatty = lambda: True  # so that it needs rich, which nothing has imported yet\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    root = str(Path(sys.modules["learner.cli.main"].__file__).parents[2])

    def run(*words):
        command, environment = [sys.executable, program, *words], {**os.environ, "PYTHONPATH": root, "TERM": "xterm"}
        return subprocess.run(command, cwd="run", env=environment, capture_output=True, check=False).returncode

    assert run("summary", ".") == 0
    assert run("sumary") == 2
    assert not os.path.exists("imported")
    os.remove("run/yaml.py")
    assert run("fit", "config.yaml", "--model=own.Model") == 2  # a config may name modules in this directory
    assert os.path.exists("imported")


def test_help_errors_and_summary_do_not_import_jax(learner, trained, workplace):
    package = os.path.dirname(os.path.dirname(sys.modules["learner.cli.main"].__file__))
    script = f"""
import sys, types
package = types.ModuleType("learner")  # the package itself imports what Python users need
package.__path__ = [{package!r}]
sys.modules["learner"] = package
from learner.cli.main import main
helps = "--help; help resume; fit --help; fit --help=metrics; resume --help metrics; devices --help; doctor --help"
for words in (*helps.split("; "), "summary run", "fit a.yaml", "resume a", "evaluat"):
    print("code:", main(words.split()))
print("loaded:", sorted({{"jax", "optax", "flax", "jsonargparse"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [
        "learner: there is no config file a.yaml: did you mean 'line.yaml'?",
        "learner: there is no directory a",
        "learner: there is no command 'evaluat': did you mean 'evaluate'?",
    ]
    assert re.findall(r"^code: (\d)", done.stdout, re.M) == [*"0" * 8, *"2" * 3]
    assert done.stdout.count("\nmetrics is one of these") == 2
    assert done.stdout.splitlines()[-1] == "loaded: []"


# -- another run's parameters ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_config_starts_with_the_model_of_another_run(learner, config, workplace):
    assert learner("fit", config)[0] == 0
    took = f"took 1 of 1 array from the checkpoint {workplace}/run/checkpoint/6"
    for directory, source in (("short", "run"), ("long", "{directory: run, which: latest, partial: true}")):
        code, out, _ = learner("fit", config, f"--directory={directory}", f"--initial_from={source}")
        assert code == 0
        assert took in out.splitlines()
        assert took in (workplace / directory / "experiment.log").read_text()
    content = yaml.safe_load((workplace / "short" / "config.yaml").read_text())
    assert content["initial_from"] == {"directory": "run", "which": "best", "partial": False, "step": None}
    assert learner("fit", config, "--directory=third", "--initial_from.directory=run", "--initial_from.which=2")[0] == 0
    code, _, err = learner(
        "fit", config, "--directory=fourth", "--initial_from.directory=run", "--initial_from.which=9"
    )
    assert code == 2
    assert "there is no checkpoint of the end of epoch 9" in err
    assert not (workplace / "fourth").exists()
    shutil.rmtree(workplace / "run")
    assert learner("resume", "short", "--num_epochs=3")[0] == 0
    assert "initial_from is ignored" in (workplace / "short" / "experiment.log").read_text()


def test_error_of_items_names_their_rows(workplace, line_config, learner):
    (workplace / "ragged.py").write_text(
        "import numpy as np\n"
        "def items():\n"
        "    return [{'x': np.zeros(3 + (i == 5), np.float32), 'y': np.float32(i)} for i in range(8)]\n"
    )
    line_config["train"] = {
        "dataset": {"class_path": "ragged.items"},
        "views": [{"slice": {"start": 3}}],
        "batch_size": 4,
    }
    (workplace / "line.yaml").write_text(json.dumps(line_config))
    code, _, err = learner("fit", "line.yaml")
    assert code == 2
    first, second = err.splitlines()
    message = "items of a batch differ in shape: x is [3] in items 0, 1 and 3, and [4] in item 2; give"
    assert first.startswith(f"learner: {message} DataLoaderBuilder a batcher that pads")
    assert second == "  while making a batch of the rows [0, 1, 2, 3]"


COMMAND = [sys.executable, "-m", "learner"]


def test_closed_pipe_is_not_an_error(config):
    """`learner ... | head -1` closes the pipe; here it is closed before the first write."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.parametrize("command", ["--help", "compare run", "fit line.yaml --print_config"])
def test_full_standard_output_is_an_error(learner, trained, command):
    with open("/dev/full", "w") as full:
        words = [*COMMAND, *command.split()]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    message = "learner: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, message)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.full
@pytest.mark.parametrize("streams", [">/dev/full", "<&- >&- 2>&-"])
def test_run_continues_without_its_output(config, streams):
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m learner fit line.yaml --directory=run {streams}', sys.executable],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert read_summary()["epochs"] == 2
    log = Path("run/experiment.log").read_text()
    assert ": num_epochs (" in log
    assert ("PlainRenderer failed and is detached; training continues" in log) == ("full" in streams)
    for line in Path("run/journal.jsonl").read_text().splitlines():
        json.loads(line)  # no printed text is in a file that reuses the number of a standard stream


NO_READER = "a pipe without a reader"


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.parametrize("errors", ["/dev/full", NO_READER])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("fit line.yaml --num_epochs=50 --on_epoch_end=hooks.stop --overwrite=true", 143),
        ("evaluate run --trust", 0),
        ("resume run --num_epochs=3", 0),
        ("resume nowhere", 2),
    ],
)
def test_commands_do_not_need_standard_error(trained, workplace, command, expected, errors):
    (workplace / "hooks.py").write_text("import os\ndef stop(info, model):\n    os.kill(os.getpid(), 15)\n")
    if errors == NO_READER:
        reader, stderr = os.pipe()
        os.close(reader)
    else:
        stderr = os.open(errors, os.O_WRONLY)
    words, env = [*COMMAND, *command.split()], {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stderr=stderr, check=False)
    os.close(stderr)
    assert done.returncode == expected


def test_an_error_has_its_code_without_standard_error(monkeypatch, workplace):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    assert main(["resume", "nowhere"]) == 2


def test_output_and_errors_may_be_one_stream(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    assert main(["--version"]) == 0
    assert out.getvalue().startswith("learner ")


def test_command_is_refused_on_windows():
    script = "import sys; sys.platform = 'win32'; import learner.cli.main"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    message = "ImportError: learner does not run on Windows: use WSL, the Windows Subsystem for Linux"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, message)


PLANTED = ["yaml", "json", "numpy", "random", "socket", "csv", "secrets", "jax", "optax", "typing", "pickle", "rich"]
ALL = """fit line.yaml --overwrite=true; resume run; evaluate run; predict run data.npz -o out.npz
export run -o model.mpk; export run --format=csv; summary run; summary line.yaml; compare run; report run
plot run valid/Loss -o plot.png; data line.yaml; devices; plot-lr line.yaml -o lr.png; fit workers.yaml
profile line.yaml --steps=[1,2]; find-lr line.yaml --steps=3; doctor line.yaml --only=gradients
ask save run; watch run"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "commands"),
    [
        ("module", "export run --format=csv"),
        ("script", ALL),
        ("module", "fit workers.yaml; evaluate run; compare run; watch run"),
    ],
)
def test_files_of_the_current_directory_do_not_hide_modules(trained, workplace, way, commands):
    """Each planted file writes its name when it is imported. Modules that Python's `-m` itself imports, such as
    `types`, are planted for the script only.
    """
    x = np.ones((4, 3), np.float32)
    np.savez("data.npz", x=x, y=x.sum(1))
    with open("mymodule.py", "a") as file:
        file.write("\n\ndef items():\n    return [{'x': np.ones(3, np.float32), 'y': np.float32(1)}] * 8\n")
    workers = {**yaml.safe_load(Path("line.yaml").read_text()), "directory": "with_workers"}
    workers["train"] = {"dataset": "mymodule.items", "batch_size": 4, "num_workers": 1}
    Path("workers.yaml").write_text(json.dumps(workers))
    program = workplace.parent / f"{workplace.name}-bin" / "learner.py"
    program.parent.mkdir()
    program.write_text(
        "import sys\nfrom learner.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    program = program.rename(program.with_name("run-learner"))
    for name in [*PLANTED, *(["types", "functools", "threading", "re"] if way == "script" else [])]:
        (workplace / f"{name}.py").write_text(f"open('{workplace}/imported', 'a').write('{name} ')\n")
    root = str(Path(sys.modules["learner.cli.main"].__file__).parents[2])
    command = [sys.executable, str(program)] if way == "script" else COMMAND
    for words in commands.replace("\n", ";").split(";"):
        done = subprocess.run(
            [*command, *words.split()],
            env={**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        refused = {"ask": "no run is training", "watch": "needs a terminal"}.get(words.split()[0])
        assert done.returncode == (2 if refused else 0), (words, done.stderr)
        assert (refused or "") in done.stderr
        assert not (workplace / "imported").exists(), (words, (workplace / "imported").read_text())


def test_directory_of_runs_is_refused_with_a_list_of_its_runs(learner, trained):
    os.makedirs("runs")
    os.rename("run", "runs/a")
    code, _, err = learner("resume", "runs")
    assert code == 2
    assert err.splitlines()[1:] == [f"  {Path('runs', 'a')}"]


@pytest.mark.full
def test_stages_and_ctrl_c_on_a_terminal(workplace, config):
    rows = "--train.dataset={class_path: mymodule.rows, init_args: {count: 1000000}}"
    terminal = Terminal(["fit", config, rows], 160, 40)
    terminal.wait_for("epoch 1/2", "  step ")  # before the run starts, a signal would end the command
    stages = terminal.text.splitlines()[0]
    assert stages.startswith("learner 0.")
    assert len(re.findall(r" [0-9.]+ m?s\b", stages)) == stages.count(",") + 1
    terminal.kill(signal.SIGINT)
    assert terminal.end() == 130
    shown = list(filter(None, terminal.text.splitlines()))
    assert "ctrl-c: stopping after the steps in flight, saving a checkpoint; again to end now" in shown
    assert shown[-1] == "learner: interrupted; resume with: learner resume run"
    assert not [line for line in shown if line.startswith("metric")]


@pytest.mark.full
def test_stages_are_lines_in_a_pipe_and_absent_from_a_printed_config(config, capsys):
    assert main(["fit", config]) == 0
    out, err = capsys.readouterr()
    stages = [re.sub(r" [0-9.]+ m?s$", "", line) for line in out.splitlines()[:6]]
    assert re.fullmatch(r"learner 0\.\S+: importing JAX", stages[0])
    assert [line.strip() for line in stages[1:]] == [
        "reading the config",
        "reading the data",
        "checking the step",
        "tracing",
        "making the model",
    ]
    assert err == ""
    assert main(["fit", config, "--print_config"]) == 0
    out, err = capsys.readouterr()
    assert (out.split(":")[0], err) == ("directory", "")


@pytest.mark.full
@pytest.mark.parametrize("command", ["fit", "resume"])
def test_terminal_shows_a_line_before_jax_is_imported(workplace, command):
    Path("a.yaml").mkdir() if command == "resume" else Path("a.yaml").touch()
    Path("a.yaml/config.yaml").touch() if command == "resume" else None
    code = f"import sys; sys.modules['jax'] = None\nfrom learner.cli.main import main\nmain([{command!r}, 'a.yaml'])"
    terminal, side = os.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stderr=side) as process:
        shown = ""
        while "Traceback (most recent call last):" not in shown:
            shown += os.read(terminal, 10_000).decode()
        process.kill()
    os.close(side)  # after reading: on macOS it waits for a reader
    os.close(terminal)
    shown = shown.splitlines()
    piped = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False).stderr
    assert shown[0].startswith("learner 0.")
    assert shown[1:2] == piped.splitlines()[:1] == ["Traceback (most recent call last):"]
