"""`python -m lockstep` is the command `lockstep`, also for torchrun."""

import sys

from lockstep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
