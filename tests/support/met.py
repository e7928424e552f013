"""One of several connected processes: `python met.py PORT COUNT INDEX WHAT`. Prints its results as JSON."""

import json
import os
import signal
import sys
import threading
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from learner import LearnerError, init_distributed
from learner.distributed.connection import unconnected_launcher
from learner.distributed.departure import leave
from learner.distributed.process_group import hosts
from learner.util.jax_internals import distributed_state

PORT, COUNT, INDEX, WHAT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
TIMEOUT = {"fine": 20.0, "late": 2.0, "stuck": 2.0, "last": 1.0, "first": 1.0}[WHAT]


HEARD = []


def hear(number, frame):
    """Install signal handlers before the process is connected, as the command line does."""
    HEARD.append(number)
    distributed_state().client.key_value_set("heard", "")


def say(name, value):
    print(json.dumps([name, value]), flush=True)


def refusal(function, *arguments):
    """Return the message of a call that must fail."""
    try:
        function(*arguments)
    except LearnerError as error:
        return str(error)
    return None


def seconds(function, *arguments):
    """Return a call's duration, and the message of its failure."""
    before = time.monotonic()
    message = refusal(function, *arguments)
    return time.monotonic() - before, message


def store():
    """Use keys in the store."""
    return len(distributed_state().client.key_value_dir_get("learner"))


def fine():
    """Check that meetings without faults succeed."""
    here = hosts(TIMEOUT)
    say("who", [here.index, here.count])
    os.environ["SLURM_STEP_NUM_TASKS"] = str(here.count)
    say("unconnected", unconnected_launcher())
    say("words", here.all_gather_json({"from": here.index, "pair": (1, None)}))
    say(
        "many",
        [here.all_gather_json([here.index, n]) for n in range(50)]
        == [[[i, n] for i in range(COUNT)] for n in range(50)],
    )
    say("late", here.all_gather_json(time.sleep(0.5 * here.index)))
    here.agree("the config", {"lr": 0.1, "layers": [1, 2]})
    say("differ", refusal(here.agree, "the config", {"lr": 0.1 * here.index, "layers": [1, 2], "seed": 0}))
    say("elsewhere", refusal(here.all_gather_json, None, "save" if here.index == 1 else "the next step"))
    say("after", here.all_gather_json("still"))
    say("once", here.run_on_primary(lambda: ["only", here.index]))

    def refused():
        raise LearnerError(f"no room, says process {here.index}")

    say("refused", refusal(here.run_on_primary, refused))
    here.all_gather_json(None)
    if here.index == 0:
        say("keys", store())
    say("sum", float(multihost_utils.process_allgather(np.float32(here.index + 1)).sum()))
    say("devices", [len(jax.local_devices()), len(jax.devices())])
    client = distributed_state().client
    if here.index == 1:  # SIGTERM arrives while process 1 waits in C++; the others wait until it has been received
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        client.blocking_key_value_get("heard", 5_000)
    here.all_gather_json(None)
    say("heard", len(HEARD))
    say("again", refusal(init_distributed))
    say("another", refusal(init_distributed, f"localhost:{PORT}", COUNT + 1, INDEX))
    before = time.perf_counter()
    for _ in range(100):
        here.all_gather_json("go on")
    say("milliseconds", (time.perf_counter() - before) * 10)
    failing(hosts(TIMEOUT))
    here = hosts(TIMEOUT)
    say("next run", here.all_gather_json(here.index))
    if here.index == 0:
        leave("LearnerError: there is no such file")
    else:
        say("left", seconds(here.all_gather_json, "and on"))
        leave("because of process 0")


def failing(here):
    """Fail in process 1 while the others wait; their failure because of it is not a new failure."""
    here.all_gather_json("begin")
    if here.index == 1:
        time.sleep(0.3)
        here.fail("CrashError: out of coffee")
        here.fail("not heard")
        say("failed", [0, refusal(here.all_gather_json, "more")])
    else:
        say("failed", seconds(here.all_gather_json, "more"))
        here.fail("because of 1")
        say("failed again", refusal(here.all_gather_json, "more"))


def late():
    """Let the last process come too late to a meeting, then the first one, which collects the messages."""
    client = distributed_state().client
    for who in (COUNT - 1, 0):
        here = hosts(TIMEOUT)
        here.all_gather_json("begin")
        others = [index for index in range(COUNT) if index != who]
        if here.index == who:
            for index in others:
                client.blocking_key_value_get(f"over/{who}/{index}", 60_000)
        say("late", seconds(here.all_gather_json, "end"))
        client.key_value_set(f"over/{who}/{here.index}", "yes")


def killed(who):
    """Kill a process while the others wait for it."""
    here = hosts(TIMEOUT)
    here.all_gather_json("begin")
    if here.index == who:
        os.kill(os.getpid(), signal.SIGKILL)
    say("killed", seconds(here.all_gather_json, "end"))


def stuck():
    """End process 1 with an error while the devices of the others wait for its devices."""
    multihost_utils.process_allgather(np.float32(1))
    try:
        if INDEX == 1:
            raise LearnerError("out of coffee")
        multihost_utils.process_allgather(np.float32(2))
    except Exception as error:
        say("stuck", str(error))
        leave(str(error), patience=1.0)
        sys.exit(2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, hear)
    init_distributed(f"localhost:{PORT}", COUNT, INDEX, heartbeat=60 if WHAT == "stuck" else 6)
    {"fine": fine, "late": late, "stuck": stuck, "last": lambda: killed(COUNT - 1), "first": lambda: killed(0)}[WHAT]()
