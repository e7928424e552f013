"""Calls of Orbax without its log lines, and without the side effects of logging them."""

import contextlib
import logging
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_depth = 0
_level = logging.NOTSET


class _Placeholder(logging.Handler):
    """Keep absl from configuring the root logger, and handle records as a root logger without handlers does."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record to the handler of last resort, which has its own level."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level:
            last.handle(record)


_placeholder = _Placeholder()


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
    """Raise the level of absl's logger inside the block, and leave the root logger without handlers if it has none.

    Orbax reports each file that it reads or writes through absl, and absl calls `logging.basicConfig` before each
    record if the root logger has no handler: the user's own `basicConfig` would do nothing from then on.
    """
    global _depth, _level
    logger = logging.getLogger("absl")
    # The saver's and the loop's thread may be in here at the same time: the last to leave restores the original state.
    with _lock:
        _depth += 1
        if _depth == 1:
            _level = logger.level
            logger.setLevel(logging.ERROR)
            if not logging.root.handlers:
                logging.root.addHandler(_placeholder)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                logging.root.removeHandler(_placeholder)
                logger.setLevel(_level)
