"""The standard streams of a process, which may be closed or unwritable."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TextIO


def fill_descriptors() -> None:
    """Open /dev/null in place of closed standard streams. Otherwise the next opened file, such as a run's lock, gets
    the descriptor of one of them, and with it everything that a library prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free descriptor, which is this one; child processes need it as much.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


@contextlib.contextmanager
def write_errors(stream: TextIO, handle: Callable[[OSError], None]) -> Iterator[None]:
    """Call `handle` in place of raising an error of writing to the stream in this block. An object in place of a stream
    that takes no attributes is left as it is.
    """

    def handling(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except OSError as error:
                return handle(error)

        return call

    with contextlib.ExitStack() as restored:
        for name in ("write", "flush"):
            with contextlib.suppress(AttributeError, TypeError):
                before, is_own = getattr(stream, name), name in vars(stream)
                setattr(stream, name, handling(before))
                restored.callback(_restore, stream, name, before, is_own)
        yield


def _restore(stream: TextIO, name: str, method: Any, is_own: bool) -> None:
    """Restore a method. `is_own`: the stream had it as an attribute, as inside another such block."""
    if is_own:
        setattr(stream, name, method)
        return
    try:
        delattr(stream, name)
    except AttributeError:  # of a wrapper, which has passed the attribute on to its stream
        setattr(stream, name, method)
