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
            # gets the lowest free descriptor, which is this one; child processes need it as much
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


@contextlib.contextmanager
def write_errors(stream: TextIO, handle: Callable[[OSError], None]) -> Iterator[None]:
    """Call `handle` in place of raising an error of writing to the stream in this block."""

    def handling(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return method(*arguments)
            except OSError as error:
                return handle(error)

        return call

    with contextlib.ExitStack() as restored:
        for name in ("write", "flush"):
            before = getattr(stream, name)
            # Inside another such block the method is the one of that block.
            restore = (setattr, stream, name, before) if name in vars(stream) else (delattr, stream, name)
            restored.callback(*restore)
            setattr(stream, name, handling(before))
        yield
