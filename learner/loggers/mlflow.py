"""Logger for MLflow: parameters, metrics and files of a run, on a server or in a store."""

import collections
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from learner.errors import LearnerError
from learner.events import Event, Message, RunEnded, RunFailed, RunStarted, SamplesLogged, SplitEnded, StepsEnded
from learner.loggers.base import EVERY_DEAR
from learner.loggers.checkpoint_upload import check_log_model, checkpoints_to_keep
from learner.loggers.exactly_once import ExactlyOnceLogger
from learner.loggers.flat_settings import plain_settings
from learner.loggers.secrets import parts_of, resolve
from learner.runs.layout import ENDS
from learner.runs.samples import histogram_json
from learner.util.json_values import encode
from learner.util.optional import refuse_missing
from learner.util.png import pixels
from learner.util.retries import Retries
from learner.util.samples import Image
from learner.util.urls import refuse_url, without_user

T = TypeVar("T")
MOST_METRICS, MOST_OTHERS = 1000, 100  # that MLflow accepts in one request
LONGEST_KEY = 120  # of an image's name: it becomes a part of a file name
MOST_MESSAGES = 10_000  # of one start of a run; the newest
SECONDS_BETWEEN_REQUESTS = 1.0
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # our retries are bounded, and stop with the run
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MLflow(ExactlyOnceLogger):
    """Log a run to MLflow.

    Values of whole splits are metrics named by key (`valid/Loss`), values of single steps `step/train/Loss`; both are
    logged at the optimizer step. The config becomes parameters; commit and environment become tags; texts (a confusion
    matrix), messages and the summary become files of the run; values that can be drawn become images. A resumed run
    continues under the same id, which `mlflow.json` in its directory stores; values on the server remain.

    Failed requests are retried with growing pauses. If that does not help, there is one warning, and nothing more is
    sent. Needs mlflow and pillow, of the extra `mlflow`. MLflow's telemetry and its own retries are off, unless the
    environment sets them.

    Args:
      tracking_uri: `http://host:5000`, `sqlite:///mlflow.db`, a directory; default: MLflow's environment variables. In
        texts, `${env:NAME}` stands for the value of an environment variable.
      experiment: the name of the experiment, which is created if it does not exist.
      run_name: the name of the run; default: the name of its directory.
      every_steps: see `RunLogger`.
      every_epochs: see `RunLogger`.
      retries: the number of retries of a request.
      sleep: the function that waits between retries.
      clock: returns seconds; metrics are sent once per second.
      log_model: checkpoints to store at the end of the run, in its artifacts below `checkpoint/`: `"best"` (the newest,
        if there is no best one), or `"all"` that the run has then. Default: none.

    Raises:
      LearnerError: mlflow or pillow is not installed, or the address is invalid.
    """

    file = "mlflow.json"
    seconds_to_close = 120.0  # creating a new SQLite store takes 10 to 20 s, and a short run has ended by then

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str = "learner",
        run_name: str | None = None,
        every_steps: int | None = EVERY_DEAR,
        every_epochs: int = 1,
        retries: int = 3,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        log_model: str | None = None,
    ):
        super().__init__(every_steps, every_epochs)
        tracking_uri, experiment, run_name = resolve((tracking_uri, experiment, run_name))
        self.secrets = parts_of(tracking_uri)
        if tracking_uri is not None and not isinstance(tracking_uri, str):
            raise LearnerError(
                f"tracking_uri of MLflow is of type {type(tracking_uri).__name__}; it needs a text, such as sqlite:///m.db",
                code="logger-mlflow-uri-type",
            )
        if tracking_uri is not None and tracking_uri.startswith("http"):
            refuse_url(tracking_uri, "MLflow")
        if not isinstance(experiment, str) or not experiment:
            raise LearnerError(
                f"experiment of MLflow is {experiment!r}; it needs a name", code="logger-mlflow-experiment"
            )
        self._log_model = check_log_model("MLflow", log_model)
        self._retries, self._clock = Retries(retries, sleep=sleep), clock
        refuse_missing("mlflow", "mlflow", "MLflow")
        refuse_missing("PIL", "mlflow", "MLflow")
        self._uri, self._experiment, self._name = tracking_uri, experiment, run_name
        self._client: Any = None
        self._waiting: list[Any] = []
        self._messages: collections.deque[str] = collections.deque(maxlen=MOST_MESSAGES)
        self._from = ""
        self._sent = clock()

    def on_event(self, event: Event) -> None:
        """Handle an event; see `RunLogger`. Addresses in MLflow's errors are masked because they may contain
        passwords.
        """
        try:
            super().on_event(event)
        except LearnerError:
            raise
        except Exception as error:
            raise LearnerError(without_user(f"{type(error).__name__}: {error}"), code="logger-mlflow-failed") from None

    def started(self, event: RunStarted) -> None:
        """Find or create the run."""
        super().started(event)
        self._directory = event.directory.absolute()
        at = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(event.time))
        self._from = f"from-step-{event.step}-at-{at}"  # several starts may resume from the same checkpoint
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)  # before mlflow is imported
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient(self._uri)
        facts = {f"learner.{key}": str(value) for key, value in plain_settings(event.environment).items()}
        tags = {**facts, "learner.directory": str(event.directory.absolute())}
        if event.commit is not None:
            tags["mlflow.source.git.commit"] = event.commit
        known: Mapping[str, str] = {}
        if self.cursor.known:
            known = self._ask(self._client.get_run, self.cursor.id).data.params
            self._ask(self._client.update_run, self.cursor.id, status="RUNNING")
        else:
            name = self._name or event.directory.absolute().name
            run = self._ask(self._client.create_run, self._experiment_id(), run_name=name)
            self.cursor.id = run.info.run_id
        with self.cursor.uploading():
            params = {key_of(key): str(value) for key, value in plain_settings(event.config).items()}
            self._log(params={key: value for key, value in params.items() if key not in known}, tags=tags)
            self._keep("config.json", event.config)

    def send_steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Collect the values, and send them once per second."""
        at = round(1000 * event.time)
        for name, column in values.items():
            key = key_of(f"step/{event.split}/{name}")
            self._waiting += [self._metric(key, x, at, step) for step, x in zip(steps, column.tolist(), strict=True)]
        if self._clock() - self._sent >= SECONDS_BETWEEN_REQUESTS or len(self._waiting) >= MOST_METRICS:
            self._send()

    def send_split(self, event: SplitEnded) -> None:
        """Send the values, texts as files."""
        at = round(1000 * event.time)
        numbers = {name: value for name, value in event.values.items() if not isinstance(value, str)}
        texts = {name: value for name, value in event.values.items() if isinstance(value, str)}
        self._waiting += [self._metric(key_of(f"{event.split}/{n}"), x, at, event.step) for n, x in numbers.items()]
        self._send()
        for name, text in texts.items():
            file = key_of(f"{event.split}/{name}/step-{event.step}.txt").replace(":", "_")
            self._ask(self._client.log_text, self.cursor.id, text, file)
        for name, draw in event.pictures.items():
            self._picture(key_of(f"{event.split} {name}"), draw(), event.step, at)

    def send_samples(self, event: SamplesLogged) -> None:
        """Send pictures, and texts and histograms as files."""
        with self.cursor.uploading():
            for name, value in event.values.items():
                file = key_of(f"custom/{name}/step-{event.step}").replace(":", "_")
                if isinstance(value, Image):
                    self._picture(key_of(f"custom {name}"), value.pixels, event.step, round(1000 * event.time))
                elif isinstance(value, str):
                    self._ask(self._client.log_text, self.cursor.id, value, f"{file}.txt")
                else:
                    self._keep(f"{file}.json", histogram_json(value))

    def message(self, event: Message) -> None:
        """Collect the message; all of them are sent at the end."""
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.time))
        self._messages.append(f"{at} {logging.getLevelName(event.level):5} {event.text}\n")

    def ended(self, event: RunEnded) -> None:
        """Send the summary and the status of the run."""
        self._send()
        self._send_messages()
        self._keep("summary.json", event.summary)
        for name, path in checkpoints_to_keep(event, self._directory, self._log_model):
            self._ask(self._client.log_artifacts, self.cursor.id, str(path), f"checkpoint/{name}")
        self._log(tags={"learner.stopped_by": event.stopped_by})
        status = "FINISHED" if event.stopped_by.startswith(ENDS) else "KILLED"
        self._ask(self._client.set_terminated, self.cursor.id, status=status)

    def failed(self, event: RunFailed) -> None:
        """Send the error."""
        if self._client is not None and self.cursor.id:
            self._send()
            self._send_messages()
            self._log(tags={"learner.error": event.error})
            self._ask(self._client.set_terminated, self.cursor.id, status="FAILED")

    def close(self) -> None:
        """Forget the messages. They are not those of a later run with the same logger."""
        self._messages.clear()  # not when a run starts, as a message may come before

    def _experiment_id(self) -> str:
        existing = self._ask(self._client.get_experiment_by_name, self._experiment)
        if existing is None:
            return str(self._ask(self._client.create_experiment, self._experiment))
        return str(existing.experiment_id)

    def _send(self) -> None:
        """Send all pending metrics. MLflow stores a value only once even if it is sent twice because a response was
        lost.
        """
        waiting, self._waiting = self._waiting, []
        with self.cursor.uploading():
            for metrics in _parts(waiting, MOST_METRICS):
                self._ask(self._client.log_batch, self.cursor.id, metrics=metrics)
        self._sent = self._clock()

    def _send_messages(self) -> None:
        """Upload the messages of this start of the run as a file."""
        if self._messages:
            self._ask(self._client.log_text, self.cursor.id, "".join(self._messages), f"messages/{self._from}.txt")

    def _picture(self, key: str, picture: np.ndarray, step: int, at: int) -> None:
        from PIL import Image

        image = Image.fromarray(pixels(picture))
        key = re.sub(r"[/:]", "_", key)[:LONGEST_KEY]
        of_step = {"key": key, "step": step, "timestamp": at, "synchronous": True}
        self._ask(self._client.log_image, self.cursor.id, image, **of_step)

    def _log(self, params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
        from mlflow.entities import Param, RunTag

        for name, kind, entries in (("params", Param, params), ("tags", RunTag, tags)):
            for part in _parts([kind(key, value) for key, value in (entries or {}).items()], MOST_OTHERS):
                self._ask(self._client.log_batch, self.cursor.id, **{name: part})

    def _keep(self, name: str, content: Mapping[str, Any]) -> None:
        self._ask(self._client.log_dict, self.cursor.id, encode(content), name)

    def _ask(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        return self._retries.call(lambda: function(*args, **named), _passes)


def key_of(name: str) -> str:
    """Return a name with only the characters that MLflow accepts.

    >>> key_of("valid/F-beta (0.5)")
    'valid/F-beta _0.5_'
    """
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _passes(error: Exception) -> bool:
    """Return True if a retry may succeed, unless the server understood and refused the request."""
    status = getattr(error, "get_http_status_code", lambda: 500)()
    return isinstance(error, OSError) or (hasattr(error, "get_http_status_code") and (status == 429 or status >= 500))
