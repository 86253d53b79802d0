"""The launcher's process: runs torch's elastic launcher (what ``torchrun`` is), and tells which rank ended how."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gradconform.process.serving import Orders, Tell, end_with

_SHUTDOWN_S = 5


def launch(orders: Orders, tell: Tell) -> None:
    """Do the work of the launcher's process: start the ranks of this machine, wait for them, tell those that failed."""
    order = next(orders)
    folder = Path(order["folder"])
    # A signal that leaves time to end the ranks and to remove what they wrote, where nobody else will.
    signal.signal(signal.SIGTERM, _give_up)
    end_with(os.getppid(), signal.SIGTERM)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        tell({"failed": _exit_codes(folder, order["options"])})
    except (SystemExit, SignalException):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _exit_codes(folder: Path, options: dict[str, Any]) -> dict[int, int]:
    """Run the ranks; return the exit codes of those that failed."""
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL)
    config = LaunchConfig(**options, logs_specs=logs, rdzv_backend="c10d", max_restarts=0, shutdown_timeout=_SHUTDOWN_S)
    try:
        elastic_launch(config, sys.executable)("-m", "gradconform.pipeline.rank", str(folder), str(os.getpid()))
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def _give_up(*_: object) -> NoReturn:
    raise SystemExit
