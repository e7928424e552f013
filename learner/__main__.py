"""`python -m learner` is the command `learner`."""

import os
import sys

try:
    _here = os.getcwd()
except OSError:  # the directory was removed
    _here = ""
if sys.path[0] in ("", _here):
    # Python puts the current directory first, where a user's json.py would be imported in place of the real one. The
    # command appends it behind everything else, once its own modules are imported.
    del sys.path[0]

from learner.cli.main import main

sys.exit(main())
