"""`python -m kvring` is the command `kvring`."""

import sys

from kvring.cli import main

sys.exit(main())
