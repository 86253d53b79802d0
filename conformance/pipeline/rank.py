"""The process of one rank: ``python -m gradconform.pipeline.rank FOLDER LAUNCHER``, started by torch's launcher.

LAUNCHER is the launcher's process id: this process ends with it from its first moment on, before torch is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gradconform.process.serving import end_with


def main(folder: Path, launcher: int) -> None:
    """Run the job of a folder."""
    end_with(launcher)
    from .rank_process import run_rank  # noqa: PLC0415 (it imports torch, which takes seconds)

    run_rank(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
