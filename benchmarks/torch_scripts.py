"""Runs scripts that use torch alone, each in a fork of a process that has torch loaded: its import is paid for once.

`python torch_scripts.py FOLDER SCRIPT…` writes what each prints to `FOLDER/<its name>.txt`, and prints a JSON object a
line with its name, exit code and seconds. A negative exit code is the signal that ended it.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path

import torch.distributed.pipelining  # noqa: F401 (each fork has it)


def run(script: Path, log: Path) -> None:
    """Run a script as if it had been started, in a fork, and end the fork with the script's exit code."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 (Python's own way to end a script)
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(folder: Path, scripts: list[Path]) -> None:
    """Run the scripts, one after another."""
    for script in scripts:
        begun = time.monotonic()
        fork = os.fork()
        if fork == 0:
            run(script, folder / f"{script.stem}.txt")
        _, status = os.waitpid(fork, 0)
        seconds = round(time.monotonic() - begun)
        outcome = {"name": script.stem, "code": os.waitstatus_to_exitcode(status), "seconds": seconds}
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(one) for one in sys.argv[2:]])
