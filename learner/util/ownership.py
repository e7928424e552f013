"""Objects that only one thread may write to."""

import os
import threading

CHECKED = os.environ.get("LEARNER_CHECK_OWNERS") == "1"


class ThreadOwned:
    """Base of objects whose attributes only one thread may set.

    With `LEARNER_CHECK_OWNERS=1` in the environment, as in all tests, setting an attribute from another thread raises
    `AssertionError`. Otherwise there is no check, and no cost.

    Until `claim` is called any thread may write: an object is built by one thread and may then be passed to another.
    """

    _owner: int | None = None

    def claim(self) -> None:
        """Make the current thread the owner."""
        self._owner = threading.get_ident()

    if CHECKED:

        def __setattr__(self, name: str, value: object) -> None:
            if name != "_owner" and self._owner not in (None, threading.get_ident()):
                thread, kind = threading.current_thread().name, type(self).__name__
                raise AssertionError(f"the thread {thread} sets {name} of a {kind}, which belongs to another thread")
            super().__setattr__(name, value)
