"""Takes the profile of a run."""

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from learner.training.directory import problem_with
from learner.training.profile import Profile, Window, split_of
from learner.training.trace import Trace, read_trace

if TYPE_CHECKING:
    from learner.training.run import Run

NAME, FILE = "profile", "profile.json"
SECONDS, LEAST, MOST = 1.0, 10, 1000  # of a window that nobody has chosen


class Profiler:
    """Traces the steps of a run after `first` up to `last`; `None`: about a second of them.

    The steps begin and end with a device that has nothing to do. They end early where a validation or a hook comes, as
    the time of these is not theirs. Where no trace can be taken the run goes on without one, and says so.
    """

    def __init__(self, window: Window, run: Path):
        self._window, self._directory = window, window.directory or run / NAME
        self._first, self._last = window.first, window.last
        self._before: dict[str, float] = {}
        self._tracing = self._ended = False

    def turn(self, run: "Run") -> bool:
        """Between two dispatches; whether it took time to begin or to end."""
        step = run.position.step
        if self._ended or step < self._first:
            return False
        if not self._tracing:
            self._begin(run)
            return True
        if self._last is not None and step >= self._last:
            self.end(run)
            return True
        return False

    @property
    def tracing(self) -> bool:
        """Whether steps are profiled at the moment."""
        return self._tracing

    def _begin(self, run: "Run") -> None:
        run.worker.wait()
        step = run.position.step
        if self._last is None:
            self._last = step + min(MOST, max(LEAST, int(SECONDS / (run.pace.per_step or SECONDS))))
        if step >= self._last:
            self._ended = True
            return
        self._first = step
        if problem := problem_with(self._directory):
            self._fail(run, problem)
            return
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, 1  # more of it would slow down what is measured
        try:
            jax.profiler.start_trace(self._directory, create_perfetto_trace=True, profiler_options=options)
        except (RuntimeError, OSError) as error:
            self._fail(run, str(error))
            return
        self._tracing = True
        self._before = self._counts(run)

    def end(self, run: "Run") -> None:
        """The steps are made, or the run ends."""
        if self._ended:
            return
        if not self._tracing:
            self._fail(run, f"the run ended before step {self._first + 1}")
            return
        began = time.perf_counter()
        run.worker.wait()
        after, waited = self._counts(run), time.perf_counter() - began
        passed = {name: value - self._before[name] for name, value in after.items()}
        try:
            self._stop()
            profile = self._profile(run, passed, waited)
        except Exception as error:  # a full disk, say: the run is worth more than its profile
            self._fail(run, f"{type(error).__name__}: {error}")
            return
        self._ended = True
        if profile is not None:
            self._tell(run, profile)

    def _profile(self, run: "Run", passed: dict[str, float], waited: float) -> Profile | None:
        if (steps := run.position.step - self._first) < 1:
            self._fail(run, f"the run ended with step {self._first}")
            return None
        try:
            trace = read_trace(self._directory)
        except Exception as error:  # a trace of another version of XLA's format is still one to look at
            run.warn(f"the trace of the profile cannot be read, so that computing is not told from waiting: {error!r}")
            trace = Trace(None)
        seconds, held = passed["clock"] - passed["compile"], passed["held"] + waited
        parts = split_of(seconds, trace.busy, passed["data"], held, passed["handling"], passed["reading"])
        numbers = self._first, self._first + steps, int(passed["dispatches"]), seconds
        ordered = parts["device"], parts["data"], parts["listeners"], parts["host"]
        profile = Profile(*numbers, *ordered, passed["compile"], trace.operations, self._directory)
        (self._directory / FILE).write_text(json.dumps(profile.to_json(), indent=2) + "\n")
        return profile

    def _tell(self, run: "Run", profile: Profile) -> None:
        for line in str(profile).split("\n"):
            run.log.info("profile: %s", line)
        parts = {name: getattr(profile, name) / profile.seconds for name in ("device", "data", "host", "listeners")}
        shares = ", ".join(f"{name} {share:.0%}" for name, share in parts.items())
        run.say(f"profile of steps {profile.first + 1} to {profile.last}: {shares}; {self._directory / FILE}")
        self._window.done(profile)

    def _fail(self, run: "Run", why: str) -> None:
        self._ended = True
        run.warn(f"no step was profiled: {why}")
        self._window.failed(why)

    def _stop(self) -> None:
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()

    def abandon(self) -> None:
        """The run failed: the trace ends, so that another may begin."""
        self._ended = True
        with contextlib.suppress(Exception):
            self._stop()

    @staticmethod
    def _counts(run: "Run") -> dict[str, float]:
        times = run.worker.times
        return {
            "clock": time.perf_counter(),
            "compile": run.spent.compiling(),
            "data": run.spent.data,
            "dispatches": times.dispatches,
            "held": times.held,
            "handling": times.handling,
            "reading": times.reading,
        }
