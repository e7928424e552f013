"""Count the messages that 8, 64 and 512 processes exchange to agree, without starting the processes.

    python -m benchmarks.agreement

Each process is a thread with the real `Connected` and `Consensus`, and a client of a fake of JAX's coordination
service, which counts messages and bytes. Clocks are simulated: a dispatch takes `--seconds` of work.
"""

import argparse
import collections
import threading
from collections.abc import Callable
from typing import Any

import jax

from learner.distributed.consensus import Consensus
from learner.distributed.process_group import Connected

COUNTS = (8, 64, 512)
FIRST = 80  # uncounted turns: processes meet more often until they have measured a meeting's duration
STATUS = {"reason": None, "save": False, "since": 12.5, "halted": False, "pace": 5}


class Service:
    """The key-value store of JAX's coordination service, in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()


class Client:
    """The connection of one process.

    Attributes:
      messages: number of requests of this process.
      sent, received: bytes of keys and values.
    """

    def __init__(self, service: Service):
        self._service = service
        self.messages = self.sent = self.received = 0

    def _count(self, sent: str, received: int = 0) -> None:
        self.messages += 1
        self.sent += len(sent)
        self.received += received

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Store a value."""
        self._count(key + value)
        with self._service.changed:
            self._service.values[key] = value
            self._service.changed.notify_all()

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        """Wait for a key, and return its value."""
        with self._service.changed:
            if not self._service.changed.wait_for(lambda: key in self._service.values, milliseconds / 1000):
                self._count(key)
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            value = self._service.values[key]
        self._count(key, len(value))
        return value

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        """Return all pairs below a prefix."""
        with self._service.changed:
            pairs = [(key, value) for key, value in self._service.values.items() if key.startswith(f"{prefix}/")]
        self._count(prefix, sum(len(key) + len(value) for key, value in pairs))
        return pairs

    def key_value_delete(self, prefix: str) -> None:
        """Remove a key and all below it."""
        self._count(prefix)
        with self._service.changed:
            for key in [key for key in self._service.values if key == prefix or key.startswith(f"{prefix}/")]:
                del self._service.values[key]


def on_all(count: int, function: Callable[[int], Any]) -> None:
    """Call a function for each process, each in its own thread, and raise an exception of any of them."""
    errors: list[BaseException] = []

    def call(index: int) -> None:
        try:
            function(index)
        except BaseException as error:
            errors.append(error)

    threading.stack_size(2**18)
    threads = [threading.Thread(target=call, args=(index,)) for index in range(count)]
    threading.stack_size(0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def measure(count: int, dispatches: int = 260, seconds: float = 0.05) -> dict[str, float]:
    """Return meetings and, by kind of process, messages and bytes for each second of work.

    Args:
      count: number of processes.
      dispatches: number of dispatches of the run.
      seconds: duration of a dispatch.
    """
    service = Service()
    clients = [Client(service) for _ in range(count)]
    meetings: collections.Counter[int] = collections.Counter()

    def train(index: int) -> None:
        group, now = Connected(clients[index], index, count, 1), [0.0]
        consensus = Consensus(group, clock=lambda: now[0])

        def status() -> dict[str, Any]:
            meetings[index] += 1
            return STATUS

        for step in range(dispatches):
            now[0] += seconds
            consensus.sync(status, step)
            if step == FIRST:
                clients[index].messages = clients[index].sent = clients[index].received = meetings[index] = 0

    on_all(count, train)
    work, others = (dispatches - FIRST - 1) * seconds, clients[1:]
    bytes_of = lambda client: client.sent + client.received  # noqa: E731
    return {
        "meetings": meetings[0] / work,
        "messages": sum(client.messages for client in others) / len(others) / work,
        "bytes": sum(map(bytes_of, others)) / len(others) / work,
        "messages of process 0": clients[0].messages / work,
        "bytes of process 0": bytes_of(clients[0]) / work,
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a dispatch")
    options = parser.parse_args()
    measured = {count: measure(count, seconds=options.seconds) for count in options.processes}
    print("for each second of work")
    print(f"| processes | {' | '.join(next(iter(measured.values())))} |\n{'|---' * 6}|")
    for count, numbers in measured.items():
        print(f"| {count} | {' | '.join(f'{number:.1f}' for number in numbers.values())} |")


if __name__ == "__main__":
    main()
