"""Logger that posts important events of a run to an address, as JSON."""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from learner.errors import near, one_error
from learner.events import Event, Listener, RunEnded, RunFailed, RunStarted, SplitEnded
from learner.loggers.posts import header_problems, is_transient, post
from learner.loggers.secrets import parts_of, resolve
from learner.util.json_values import encode
from learner.util.number_checks import is_number
from learner.util.retries import Retries
from learner.util.several import as_several
from learner.util.urls import refuse_url, without_user

KINDS = ("start", "best", "end", "preemption", "failure")
PREEMPTED = ("sigterm", "sighup", "time limit")


class Webhook(Listener):
    """Post JSON objects to an address: when a run ends, fails, is preempted, or has a new best value.

        {"event": "best", "time": 1769860800.0, "directory": "runs/digits", "epoch": 3, "step": 135,
         "metric": "valid/Loss", "value": 0.25, "before": 0.31}
        {"event": "end", ..., "stopped_by": "num_epochs", "seconds": 12.5, "summary": {...}}
        {"event": "preemption", ..., "stopped_by": "sigterm", "seconds": 12.5, "summary": {...}}
        {"event": "failure", ..., "error": "ValueError('...')"}
        {"event": "start", ..., "resumed": false, "config": {...}, "environment": {...}, "commit": "..."}

    Failed posts are retried with growing pauses. If that does not help, there is one warning, and nothing more is
    posted. Redirects to another address are not followed.

    Args:
      url: the address, `https://...` or `http://...`. Here and in `headers`, `${env:NAME}` stands for the value of an
        environment variable, which is never written to a file.
      on: the events to post.
      monitors: the keys of the metrics whose new best values are posted; default: the metric that selects the best
        checkpoint.
      headers: further headers of the requests, such as `{"Authorization": "Bearer ${env:TOKEN}"}`.
      timeout: the most seconds for a request and the headers of its response. The content of a response is not read.
      retries: the number of retries of a request.
      sleep: the function that waits between retries.

    Raises:
      LearnerError: an environment variable is not set; the address is invalid, contains a user or is not ASCII; an
        event is unknown; a header has a value that cannot be sent.
    """

    def __init__(
        self,
        url: str,
        on: str | Sequence[str] = ("best", "end", "preemption", "failure"),
        monitors: str | Sequence[str] = (),
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
        retries: int = 3,
        sleep: Callable[[float], None] = time.sleep,
    ):
        url, headers = resolve((url, headers))
        refuse_url(url, "the webhook")
        chosen, self.monitors = (tuple(as_several(words)) for words in (on, monitors))
        problems = [f"on has {kind!r}: {near(str(kind), KINDS)}" for kind in chosen if kind not in KINDS]
        problems += [] if chosen else [f"on of Webhook is {on!r}, so it posts nothing: {near('', KINDS)}"]
        problems += address_problems(url) + header_problems({} if headers is None else headers)
        if not (is_number(timeout) and 0 < timeout <= threading.TIMEOUT_MAX):
            problems.append(f"timeout of Webhook is {timeout!r}; it needs seconds greater than 0, such as 5")
        if problems:
            raise one_error(problems, "Webhook cannot be used", code="logger-arguments-wrong")
        self._url, self._on, self._timeout = url, chosen, float(timeout)
        self._headers = {"Content-Type": "application/json", "User-Agent": "learner", **(headers or {})}
        self.secrets = parts_of(url, *(headers or {}).values())
        self._retries = Retries(retries, sleep=sleep)
        self._directory = ""
        self._best: dict[str, float | None] = {}
        self._higher: dict[str, bool] = {}

    def on_event(self, event: Event) -> None:
        """Post the event if it is selected."""
        if isinstance(event, RunStarted):
            self._started(event)
        elif isinstance(event, SplitEnded):
            self._look(event)
        elif isinstance(event, RunEnded):
            kind = "preemption" if event.stopped_by in PREEMPTED else "end"
            how = {"stopped_by": event.stopped_by, "seconds": event.seconds, "summary": event.summary}
            self._post(kind, event, epoch=event.epoch, step=event.step, **how)
        elif isinstance(event, RunFailed):
            self._post("failure", event, epoch=event.epoch, step=event.step, error=event.error)

    def _started(self, event: RunStarted) -> None:
        self._directory = str(event.directory)
        directions = {info.key: info.higher_is_better for info in event.metrics}
        keys = self.monitors or ([event.monitor] if event.monitor else [])
        self._higher = {key: bool(directions[key]) for key in keys if directions.get(key) is not None}
        for key, higher in self._higher.items():
            numbers = [value for _, _, value in event.history.get(key, ()) if _can_be_best(value)]
            self._best[key] = (max if higher else min)(numbers, default=None)
        details = {name: getattr(event, name) for name in ("resumed", "config", "environment", "commit")}
        self._post("start", event, epoch=event.epoch, step=event.step, **details)

    def _look(self, event: SplitEnded) -> None:
        for key, higher in self._higher.items():
            split, name = key.split("/", 1)
            value = event.values.get(name) if split == event.split else None
            before = self._best[key]
            if _can_be_best(value) and (before is None or (value > before if higher else value < before)):
                self._best[key] = value
                numbers = {"metric": key, "value": value, "before": before}
                self._post("best", event, epoch=event.epoch, step=event.step, **numbers)

    def _post(self, kind: str, event: Event, **content: Any) -> None:
        if kind not in self._on:
            return
        payload = {"event": kind, "time": event.time, "directory": self._directory, **content}
        data = json.dumps(encode(payload), allow_nan=False).encode()
        self._retries.call(lambda: post(self._url, data, self._headers, self._timeout), is_transient)


def address_problems(url: str) -> list[str]:
    """Return the problems of an address, without parts that may be secret.

    >>> address_problems("https://me:word@example.org/hook")
    ["the webhook's address is https://***@...: give user and password as the header 'Authorization', 'Basic ...'"]
    """
    problems = []
    if without_user(url) != url:
        how = "give user and password as the header 'Authorization', 'Basic ...'"
        problems.append(f"the webhook's address is {url.partition('://')[0]}://***@...: {how}")
    if not url.isascii():
        how = "where that is its path, write %C3%B6 for ö, as urllib.parse.quote does"
        problems.append(f"the webhook's address has characters that are not ASCII: {how}")
    return problems


def _can_be_best(value: float | str | None) -> TypeGuard[float]:
    """Return True for a value that can be the best: not a text, and not NaN."""
    return isinstance(value, float | int) and not math.isnan(value)
