"""Makes the package of faults importable: tests are collected by path and are no package themselves."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
