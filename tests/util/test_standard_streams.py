"""Tests of closed and unwritable standard streams."""

import io
import os
import subprocess
import sys

import pytest

from learner.util.standard_streams import write_errors

SCRIPT = """
import os
from learner.util.standard_streams import fill_descriptors

fill_descriptors()
fill_descriptors()
descriptor = os.open(os.devnull, os.O_RDONLY)
open("numbers", "w").write(f"{descriptor} {[os.get_inheritable(number) for number in range(3)]}")
"""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path, closed):
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, SCRIPT]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=True)
    assert (tmp_path / "numbers").read_text() == "3 [True, True, True]"


def test_errors_of_one_stream_are_handled_until_the_block_ends():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("nobody reads it")

    failed, inner, stream = [], [], Broken()
    with write_errors(stream, failed.append):
        with write_errors(stream, inner.append):
            pass
        print("a message", file=stream)
    assert inner == []
    assert set(map(str, failed)) == {"nobody reads it"}
    with pytest.raises(BrokenPipeError):
        print("a message", file=stream)
