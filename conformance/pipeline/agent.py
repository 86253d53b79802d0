"""The launcher's process: ``python -m gradconform.pipeline.agent FOLDER``.

It runs torch's elastic launcher (what ``torchrun`` is) on the options in ``launch.json`` and writes which rank ended
how to ``failures.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_SHUTDOWN_S = 5


def main(folder: Path) -> int:
    """Start the ranks of this machine and wait for them; return 0 where all ended well."""
    options = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL)
    config = LaunchConfig(**options, logs_specs=logs, rdzv_backend="c10d", max_restarts=0, shutdown_timeout=_SHUTDOWN_S)
    try:
        elastic_launch(config, sys.executable)("-m", "gradconform.pipeline.rank", str(folder))
    except ChildFailedError as error:
        failures = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (folder / "failures.json").write_text(json.dumps(failures), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
