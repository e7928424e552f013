"""Call `init_distributed` where no other process exists. Prints one JSON value per line."""

import json
import os
import socket

from learner import LearnerError, init_distributed
from learner.distributed.process_group import hosts
from tests.support.processes import free_port

for name in list(os.environ):
    if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "TPU_", "JAX_COORDINATOR")):
        del os.environ[name]


def say(name, *arguments, **named):
    try:
        init_distributed(*arguments, **named)
    except LearnerError as error:
        print(json.dumps([name, str(error)]), flush=True)


say("no cluster")
say("unreachable", f"localhost:{free_port()}", 2, 1, timeout=0.2)
with socket.socket(socket.AF_INET6) as bound:
    port = free_port()
    bound.bind(("::", port))
    bound.listen()
    say("taken", f"localhost:{port}", 2, 0, timeout=1)
init_distributed(f"localhost:{port}", 1, 0)
print(json.dumps(["in the end", [hosts().index, hosts().count]]))
