"""Tests of names that become file names."""

import os
import subprocess
import sys

PROGRAM = """
from learner.errors import LearnerError
from learner.runs.file_names import file_name
print(file_name("Top-5 Accuracy"))
try:
    file_name("gr\\xf6\\xdfe")
except LearnerError as error:
    print(error.code, ascii(error.fields["name"]), ascii(str(error)))
"""


def test_a_name_that_the_locale_cannot_encode_is_refused():
    """The locale of a real process, as Python reads it only at its start."""
    posix = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=posix, capture_output=True, text=True, check=True)
    good, refused = done.stdout.splitlines()
    assert good == "Top-5_Accuracy"
    assert refused.startswith("run-metric-name-unusable 'gr\\xf6\\xdfe' ")
    assert "file names are encoded as ascii in this locale, which lacks '\\xf6'; set LC_ALL=C.UTF-8" in refused
    utf8 = {**posix, "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=utf8, capture_output=True, text=True, check=True)
    assert done.stdout == "Top-5_Accuracy\n"
