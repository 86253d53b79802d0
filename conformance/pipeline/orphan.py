"""No rank outlives the run: it ends itself when the process that it runs for is gone."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

_PERIOD_S = 0.5


def end_with(parent: int, folder: Path) -> None:
    """End this process, and the launcher above it, soon after ``parent`` is gone; remove ``folder`` then.

    A thread watches, so this works while the process waits for another rank.
    """
    launcher = os.getppid()

    def watch() -> None:
        while _lives(parent) and os.getppid() == launcher:
            time.sleep(_PERIOD_S)
        if not _lives(parent):
            shutil.rmtree(folder, ignore_errors=True)
        if os.getppid() == launcher:
            os.kill(launcher, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with the run", daemon=True).start()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
