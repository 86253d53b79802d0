"""``python -m gradconform`` is the command ``gradconform``."""

import sys

from gradconform.cli import main

sys.exit(main())
