"""Tests of the number of devices for members that train together in a sweep."""

import os
import subprocess
import sys

import pytest

from learner.cli.configs.cores import MOST, devices_for


@pytest.mark.parametrize(("cores", "members", "devices"), [(4, 8, 4), (4, 6, 3), (4, 7, 1), (64, 8, MOST), (1, 8, 1)])
def test_members_are_spread_evenly_over_the_cores(cores, members, devices, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert devices_for(members) == devices


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ({}, 3),
        ({"JAX_NUM_CPU_DEVICES": "2"}, 2),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, 2),
    ],
)
def test_jax_has_a_device_for_each_core_unless_configured(given, devices):
    program = (
        "import os; os.sched_getaffinity = lambda _: {0, 1, 2}\nfrom learner.cli.configs.cores import claim_cores\n"
    )
    program += "claim_cores(); import jax; print(jax.device_count()); claim_cores()  # which is too late, and no error"
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")} | given
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(devices)]
