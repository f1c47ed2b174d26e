"""``python -m gibbsprune``: the command line."""

import sys

from gibbsprune.cli import main

if __name__ == "__main__":
    sys.exit(main())
