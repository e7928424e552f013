"""Retries of failed requests."""

import dataclasses
import time
from collections.abc import Callable
from typing import TypeVar

from learner.util.number_checks import check_int

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Retries:
    """Repeat a call until it succeeds, a limited number of times, with pauses that double.

    Args:
      times: the maximum number of retries.
      pause: seconds before the first retry.
      sleep: the function that waits.

    Raises:
      LearnerError: `times` is not an integer of 0 or more.

    >>> pauses, answers = [], iter([None, None, "taken"])
    >>> def post():
    ...     if (answer := next(answers)) is None:
    ...         raise TimeoutError
    ...     return answer
    >>> Retries(3, sleep=pauses.append).call(post, lambda error: isinstance(error, TimeoutError)), pauses
    ('taken', [1.0, 2.0])
    """

    times: int = 3
    pause: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        check_int("retries", self.times, least=0, code="retries-value")

    def call(
        self,
        what: Callable[[], T],
        is_transient: Callable[[Exception], bool],
        failed: Callable[[Exception, float], None] = lambda error, pause: None,
    ) -> T:
        """Return `what()`. Raises its error if it is not transient, or if the retries fail.

        Args:
          what: the call.
          is_transient: returns True for an error after which to retry.
          failed: called before each pause, with the error and the seconds of the pause.
        """
        for number in range(self.times):
            pause = self.pause * 2**number
            try:
                return what()
            except Exception as error:
                if not is_transient(error):
                    raise
                failed(error, pause)
            self.sleep(pause)
        return what()
