"""Process groups in threads of one process, which meet through a store in memory."""

import jax

from benchmarks.agreement import Client, Service, on_all
from learner.distributed.process_group import Connected
from learner.errors import LearnerError


class ReadingClient(Client):
    """A client that also returns values without waiting for them."""

    def key_value_try_get(self, key):
        with self._service.changed:
            value = self._service.values.get(key)
        self._count(key, len(value or ""))
        if value is None:
            raise jax.errors.JaxRuntimeError("NOT_FOUND")
        return value


def groups(count):
    """Return connected process groups, with their clients."""
    service = Service()
    clients = [ReadingClient(service) for _ in range(count)]
    return [Connected(client, index, count, 1, timeout=30.0) for index, client in enumerate(clients)], clients


def errors_of_all(count, function):
    """Call `function(index)` in a thread for each process, and return its `LearnerError` or None for each."""
    errors = [None] * count

    def call(index):
        try:
            function(index)
        except LearnerError as error:
            errors[index] = error

    on_all(count, call)
    return errors
