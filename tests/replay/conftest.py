"""Scripts that replay writes, run without the start of an interpreter and of torch for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

#: Runs a script with its arguments for each line of JSON that it reads, in a fork of a process that knows torch alone
#: and has computed nothing: a fork of the test's own process may wait for autograd threads that it does not have.
RUNNER = """
import gc, json, os, sys, tempfile, traceback
gc.disable()
import torch, torch.distributed.pipelining
import torch.fx.experimental.symbolic_shapes  # a script's first backward imports it
gc.freeze()
gc.enable()

def run(text, arguments, folder, kit):
    os.chdir(folder)
    sys.path.insert(0, folder)
    if not kit:
        sys.modules["gradconform"] = None  # an import of it raises
    sys.argv = ["script.py", *arguments]
    try:
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__", "__file__": f"{folder}/script.py"})
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        return 99

for line in iter(sys.stdin.readline, ""):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout = os.fdopen(1, "w")
            code = run(**json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code or 0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        printed = [file.read().decode(errors="replace") for file in (out, err)]
    print(json.dumps([ended, *printed]), flush=True)
"""


class Ran(NamedTuple):
    """The end of a script: its exit code, 99 if it raised, and what it printed."""

    code: int
    out: str
    err: str


RunScript = Callable[..., Ran]
RunWithoutKit = Callable[..., list[tuple[int, str]]]


@pytest.fixture(scope="session")
def run_script() -> Iterator[RunScript]:
    """Return a function that runs a script's text in a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:

        def run(text: str, *arguments: str, folder: Path, kit: bool = True) -> Ran:
            order: dict[str, Any] = {"text": text, "arguments": arguments, "folder": str(folder), "kit": kit}
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return Ran(*json.loads(process.stdout.readline()))

        yield run


@pytest.fixture
def run_without_kit(run_script: RunScript) -> RunWithoutKit:
    """Return a function that runs scripts with their arguments where gradconform cannot be imported."""

    def run(*scripts: tuple[str, tuple[str, ...]], folder: Path) -> list[tuple[int, str]]:
        found = (run_script(text, *arguments, folder=folder, kit=False) for text, arguments in scripts)
        return [(one.code, one.out + one.err) for one in found]

    return run
