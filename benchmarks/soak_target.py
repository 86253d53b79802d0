"""What benchmarks/soak.py judges: plain autograd that does to its process what ``fault.json`` says, where it says so.

The soak copies it into the folder of a fault, as a target and, beside a simulated device, as a plugin. Where the fault
comes from outside, it waits at that moment until it has come.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(os.environ["GRADCONFORM_SOAK"])
FAULT: dict[str, Any] = json.loads((FOLDER / "fault.json").read_text(encoding="utf-8"))

#: How long it waits for a fault from outside, in seconds.
_PATIENCE = 60
#: What is left of the address space where memory is to run out, in bytes, and what is asked for at a time.
_ROOM, _PIECE = 64 << 20, 8 << 20

_WORKS = {"gradconform.workers.serving:serve": "worker", "gradconform.devices.probe_questions:answer": "probe"}
_calls = 0


def _role() -> str:
    """Return what this process is to the command."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return "worker"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "rank"
    return next((role for work, role in _WORKS.items() if work in sys.orig_argv), "command")


def _memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM, resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(torch.ones(_PIECE // 4))


def _daemons() -> None:
    """Leave two processes: one in this process's group, and one that forked twice in a session of its own."""
    words = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", str(FOLDER)]
    subprocess.Popen(words)
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(words[0], words, {})  # noqa: S606 (as libraries do)
        os._exit(0)
    os.waitpid(child, 0)


_DOES: dict[str, Callable[[], object]] = {
    "exit 0": lambda: os._exit(0),
    "exit 7": lambda: os._exit(7),
    "abort": os.abort,
    "SystemExit": lambda: sys.exit(0),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "comes back": os.fork,
    "daemons": _daemons,
    "sleeps": lambda: time.sleep(1000),
    "locked": lambda: ctypes.PyDLL(None).sleep(1000),  # the interpreter's lock is kept
    "RLIMIT_AS": _memory,
    "closes all": lambda: os.closerange(3, 1 << 20),
}


def _reached(moment: str) -> None:
    """Do what is to be done now, or wait for it."""
    if FAULT["moment"] != moment or _role() != FAULT["place"] or os.environ.get("RANK", FAULT["rank"]) != FAULT["rank"]:
        return
    try:
        with (FOLDER / "struck").open("x", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        if FAULT["once"]:
            return
    if FAULT["inside"]:
        _DOES[FAULT["how"]]()
        return
    until = time.monotonic() + _PATIENCE
    while not (FOLDER / "go").exists() and time.monotonic() < until:
        time.sleep(0.01)


def stage_backward(
    stage_output: Any, output_grads: Any, input_values: Any, outputs_with_grads_idxs: Any = None
) -> tuple[Any, ...]:
    """Run plain autograd, and what is to be done amid a check."""
    global _calls  # noqa: PLW0603 (one count per process is what is wanted)
    del outputs_with_grads_idxs
    _calls += 1
    outputs = list(stage_output) if isinstance(stage_output, (tuple, list)) else [stage_output]
    if outputs[0].dim() == FAULT["dim"] or _calls == FAULT["call"]:
        _reached("amid")
    grads = output_grads if isinstance(output_grads, (tuple, list)) else [output_grads] * len(outputs)
    pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad]
    torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])
    return tuple(value.grad if torch.is_tensor(value) else None for value in input_values)


_reached("import")
