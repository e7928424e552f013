"""Tests of the values of monitored metrics that each process computes on its host."""

import math
import types

from learner import MetricEarlyStopping
from learner.metrics import AUROC, Accuracy, IterationSpeed
from learner.training.monitored_values import MonitoredValues
from learner.training.monitors import monitored_on_host
from tests.support.runs import build_line, quiet


class Second:
    """The second of two processes; the first one has measured other values."""

    count, index = 2, 1

    def __init__(self):
        self.sent = []

    def all_reduce_json(self, value, combine, what):
        self.sent.append(value)
        return combine([{"valid/AUROC": 0.5}, value])


def test_monitored_values_are_those_of_process_0():
    processes, replaced = Second(), []
    newest = {"valid/AUROC": math.inf, "valid/Loss": 0.25}
    reporter = types.SimpleNamespace(newest=lambda at: newest if at == 7 else {}, replace_newest=replaced.append)
    MonitoredValues(reporter, processes, ["train/Iteration Speed", "valid/AUROC"]).share(7)
    assert processes.sent == [{"valid/AUROC": math.inf}]
    assert replaced == [{"valid/AUROC": 0.5}]


def test_processes_do_not_wait_for_metrics_of_the_devices():
    processes = Second()
    MonitoredValues(None, processes, []).share(7)
    assert processes.sent == []
    MonitoredValues(None, types.SimpleNamespace(count=1), ["valid/AUROC"]).share(7)


def monitored(directory, key, **checkpoints):
    builder = quiet(directory, saves=True).metrics(Accuracy(), AUROC()).metric_train(IterationSpeed())
    builder.with_file_checkpointer(**checkpoints).early_stopping(MetricEarlyStopping(key))
    return monitored_on_host(build_line(builder).definition.options, ["valid"], None)


def test_collecting_metrics_and_those_of_the_machine_are_on_the_host(tmp_path):
    assert monitored(tmp_path / "run", "valid/Accuracy") == []
    assert monitored(tmp_path / "run", "custom/AUROC") == []
    assert monitored(tmp_path / "run", "valid/AUROC") == ["valid/AUROC"]
    both = monitored(tmp_path / "run", "train/Iteration Speed", monitor="valid/AUROC")
    assert both == ["train/Iteration Speed", "valid/AUROC"]
