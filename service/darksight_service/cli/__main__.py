"""`python -m darksight_service.cli` is the `darksight` command."""

import sys

from darksight_service.cli import main

if __name__ == "__main__":
    sys.exit(main())
