"""The launcher's process: runs torch's elastic launcher (what ``torchrun`` is), which starts the ranks' keeper."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gradconform.process.serving import Orders, Tell, tidy_without
from gradconform.torch_releases.pipelining import launch_options

from .exchange import remove
from .starts import Start

_SHUTDOWN_S = 5


def launch(orders: Orders, _: Tell) -> None:
    """Do the work of the launcher's process: start the keeper of this machine's ranks, and wait for it.

    The folder that they share is made here, where it is removed if the command is killed; the keeper ends with this
    process, and ranks with the keeper.
    """
    order = next(orders)
    folder = Path(order["folder"])
    tidy_without(os.getppid(), lambda: remove(folder))
    Start(folder, 0).begin(order["job"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its own processes would outlive what is compiled
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL)
    options = {**order["options"], **launch_options(LaunchConfig, _SHUTDOWN_S)}
    config = LaunchConfig(**options, logs_specs=logs, rdzv_backend="c10d", max_restarts=0)
    try:
        with suppress(ChildFailedError):  # what a keeper that failed has said is in its log
            words = ("keep", str(folder), str(os.getpid()), str(order["here"]))
            elastic_launch(config, sys.executable)("-m", "gradconform.pipeline.rank", *words)
    except SignalException as error:  # torch has ended the keeper; what ended this process is its signal all the same
        signal.signal(error.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), error.sigval)
