"""`python -m vitviz` is the same as `vitviz`."""

import sys

from vitviz.cli.main import main

sys.exit(main())
