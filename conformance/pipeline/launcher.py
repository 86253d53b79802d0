"""The launcher's process: runs torch's elastic launcher (as ``torchrun`` does), which starts the ranks' keeper."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gradconform.process.serving import Orders, Send, tidy_without
from gradconform.torch_releases.pipelining import launch_options

from .exchange import remove
from .start_folder import Start

_SHUTDOWN_S = 5


def launch(orders: Orders, _: Send) -> None:
    """Run the launcher's process: start the keeper of this machine's ranks, and wait for it.

    Their shared folder is made here, so that it is removed if the command is killed. The keeper ends with this process,
    and the ranks end with the keeper.
    """
    order = next(orders)
    folder = Path(order["folder"])
    tidy_without(os.getppid(), lambda: remove(folder))
    Start(folder, 0).begin(order["job"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its own processes would outlive the compilation
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL)
    options = {**order["options"], **launch_options(LaunchConfig, _SHUTDOWN_S)}
    config = LaunchConfig(**options, logs_specs=logs, rdzv_backend="c10d", max_restarts=0)
    try:
        with suppress(ChildFailedError):  # a failed keeper's error is in its log
            words = ("keep", str(folder), str(os.getpid()), str(order["here"]))
            elastic_launch(config, sys.executable)("-m", "gradconform.pipeline.rank_keeper", *words)
    except SignalException as error:  # torch has ended the keeper; this process still ends by the signal
        signal.signal(error.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), error.sigval)
