"""`python -m vitlab` and `torchrun -m vitlab`: the command line as a module."""

import sys

from vitlab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
