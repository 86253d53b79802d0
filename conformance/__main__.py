"""Run the command ``gradconform`` as ``python -m gradconform``."""

import sys

from .cli import main

if __name__ == "__main__":  # worker processes of the self-test import this module
    sys.exit(main())
