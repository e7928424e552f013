"""`python -m learner` is the command `learner`."""

import sys

from learner.cli.main import main

sys.exit(main())
