"""A profiler that traces some steps of a run."""

import contextlib
import json
import time
from pathlib import Path

import jax

from learner.training.files.directory import problem_with
from learner.training.profile import Profile, Window, split_of
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimer
from learner.training.trace import Trace, read_trace
from learner.util.ownership import ThreadOwned

NAME, FILE = "profile", "profile.json"
SECONDS, LEAST, MOST = 1.0, 10, 1000  # of a window without `last`


class Profiler(ThreadOwned):
    """Trace the steps of a run after `first` up to `last`, or about a second of them if `last` is None.

    The device is idle when the steps begin and end. They end early before a validation or a hook, whose time must not
    count. If no trace can be taken, the run warns and continues; so does a run that resumes behind the steps, unless it
    has their profile. The profiler belongs to the loop's thread.
    """

    def __init__(self, window: Window, run: Path, reporter: Reporter, timer: StepTimer):
        self._window, self._directory = window, window.directory or run / NAME
        self._reporter, self._timer = reporter, timer
        self._first, self._last = window.first, window.last
        self._before: dict[str, float] = {}
        self._tracing = self._ended = False
        self.claim()

    def advance(self, step: int) -> bool:
        """Begin or end the trace between two dispatches, if due. Return True if it did, which takes a while."""
        if self._ended or step < self._first:
            return False
        if not self._tracing:
            self._begin(step)
            return True
        if self._last is not None and step >= self._last:
            self.end(step)
            return True
        return False

    @property
    def tracing(self) -> bool:
        """True while steps are profiled."""
        return self._tracing

    def _begin(self, step: int) -> None:
        # A second that began in an earlier process is not traced again.
        if step >= (self._first + 1 if self._last is None else self._last):
            self._miss(step)
            return
        self._reporter.wait()  # until the device is idle: steps in flight would be traced partially
        if self._last is None:
            self._last = step + min(
                MOST, max(LEAST, int(SECONDS / (self._timer.estimator.seconds("train") or SECONDS)))
            )
        self._first = step
        if problem := problem_with(self._directory):
            self._fail(problem)
            return
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, 1  # higher levels slow down the steps
        try:
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True, profiler_options=options)
        # For example, if the user has started a trace: JAX allows one at a time.
        except (RuntimeError, OSError) as error:
            self._fail(str(error))
            return
        self._tracing = True
        # After the start of the trace, whose time does not belong to the steps.
        self._before = self._counts()

    def end(self, step: int) -> None:
        """End the trace after its steps, or when the run ends."""
        if self._ended:
            return
        if not self._tracing:
            self._miss(step)
            return
        began = time.perf_counter()
        self._reporter.wait()  # the steps in flight belong to the window
        after, waited = self._counts(), time.perf_counter() - began
        passed = {name: value - self._before[name] for name, value in after.items()}
        try:
            self._stop()
            profile = self._profile(step, passed, waited)
        except Exception as error:  # such as a full disk: the run matters more than its profile
            self._fail(f"{type(error).__name__}: {error}")
            return
        self._ended = True
        if profile is not None:
            self._report(profile)

    def _profile(self, step: int, passed: dict[str, float], waited: float) -> Profile | None:
        if (steps := step - self._first) < 1:
            self._fail(f"the run ended with step {self._first}")
            return None
        try:
            trace = read_trace(self._directory)
        except Exception as error:  # a trace of another version of XLA's format is still one to look at
            self._reporter.warn(
                f"the trace of the profile cannot be read, so computing cannot be distinguished from waiting: {error!r}"
            )
            trace = Trace(None)
        seconds, blocked = passed["clock"] - passed["compile"], passed["blocked"] + waited
        parts = split_of(seconds, trace.busy, passed["data"], blocked, passed["handling"], passed["reading"])
        profile = Profile(
            self._first,
            self._first + steps,
            int(passed["dispatches"]),
            seconds,
            **{name: parts[name] for name in ("device", "data", "listeners", "host")},
            compiling=passed["compile"],
            operations=trace.operations,
            directory=self._directory,
        )
        (self._directory / FILE).write_text(json.dumps(profile.to_json(), indent=2) + "\n")
        return profile

    def _report(self, profile: Profile) -> None:
        for line in str(profile).split("\n"):
            self._reporter.log.info("profile: %s", line)
        parts = {name: getattr(profile, name) / profile.seconds for name in ("device", "data", "host", "listeners")}
        shares = ", ".join(f"{name} {share:.0%}" for name, share in parts.items())
        self._reporter.notify(
            f"profile of steps {profile.first + 1} to {profile.last}: {shares}; {self._directory / FILE}"
        )
        self._window.complete(profile)

    def _miss(self, step: int) -> None:
        """End without a trace, because the run ends before the steps or has resumed behind their first, at `step`."""
        self._ended = True
        if step <= self._first:
            self._fail(f"the run ended before step {self._first + 1}")
        elif not (self._directory / FILE).is_file():
            self._fail(f"the run has resumed after step {step}")

    def _fail(self, why: str) -> None:
        self._ended = True
        self._reporter.warn(f"no step was profiled: {why}")
        self._window.failed(why)

    def _stop(self) -> None:
        if self._tracing:
            # First: a trace that failed to write must not be ended again.
            self._tracing = False
            jax.profiler.stop_trace()

    def abandon(self) -> None:
        """End the trace of a run that failed, so that another trace can begin."""
        self._ended = True
        with contextlib.suppress(Exception):
            self._stop()

    def _counts(self) -> dict[str, float]:
        spent = self._timer.spent
        return {
            "clock": time.perf_counter(),
            "compile": spent.compiling(),
            "data": spent.data,
            **self._reporter.times,
        }
