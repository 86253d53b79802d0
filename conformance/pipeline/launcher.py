"""The launcher's process: runs torch's elastic launcher (what ``torchrun`` is), and tells which rank ended how."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gradconform.process.serving import Orders, Tell, tidy_without
from gradconform.torch_releases.pipelining import launch_options

from .exchange import remove

_SHUTDOWN_S = 5


def launch(orders: Orders, tell: Tell) -> None:
    """Do the work of the launcher's process: start the ranks of this machine, wait for them, tell those that failed.

    The folder that they share is made here, where it is removed if the command is killed; ranks end with this process.
    """
    order = next(orders)
    folder = Path(order["folder"])
    tidy_without(os.getppid(), lambda: remove(folder))
    folder.mkdir()
    (folder / "job.json").write_text(order["job"], encoding="utf-8")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tell({"failed": _exit_codes(folder, order["options"])})


def _exit_codes(folder: Path, options: dict[str, Any]) -> dict[int, int]:
    """Run the ranks; return the exit codes of those that failed."""
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL)
    options = {**options, **launch_options(LaunchConfig, _SHUTDOWN_S)}
    config = LaunchConfig(**options, logs_specs=logs, rdzv_backend="c10d", max_restarts=0)
    try:
        elastic_launch(config, sys.executable)("-m", "gradconform.pipeline.rank", str(folder), str(os.getpid()))
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}
