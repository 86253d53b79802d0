"""The work of a worker: resolves the target, makes the plan, runs the ordered checks and reports the results.

Its first message is the run's header. Nothing here imports torch before there is work.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradconform.devices.choice import DeviceChoice
from gradconform.devices.flags import flags_named
from gradconform.files.records import finished, started
from gradconform.process.imports import imports_uncollected, objects_frozen
from gradconform.process.serving import Orders, Send, leave
from gradconform.results import Place, Result
from gradconform.run.options import RunOptions
from gradconform.run.planning import planning_within
from gradconform.run.time_budget import TimeBudget

if TYPE_CHECKING:
    from gradconform.run.run import Run


def serve(orders: Orders, send: Send) -> None:
    """Make the run of the first order, and run the places of the later ones.

    An order with ``oracle`` runs them with plain autograd in place of the target. One with ``again`` is for a check
    that has ended its process: from then on, only the checks run. One with ``last`` requests only the canaries.

    ``measured`` in the first order names a file with measurements for the plan, which are not repeated here. A worker
    that ``waits`` takes it from its second order, since the first worker of the run measures. It is a file because a
    hanging worker reads no long order, and the sender would block. ``seconds`` are left for the plan. A ``paced`` one
    measures the pace of the devices.
    """
    return_large_blocks()
    with imports_uncollected():
        from gradconform.reference.autograd import AutogradAdapter  # noqa: PLC0415 (it imports torch)
        from gradconform.run.run import Run  # noqa: PLC0415 (it imports torch)

    first = next(orders)
    options = RunOptions.from_json(first["options"])
    choice = _made_ready(options, first)
    plan = (next(orders) if first.get("waits") else first).get("measured")
    measured = None if plan is None else json.loads(Path(plan).read_text(encoding="utf-8"))
    with objects_frozen():  # to the end: a full collection would scan all of torch
        with planning_within(TimeBudget(first.get("seconds"))):
            run = _watched(Run(options, choice=choice, measured=measured), send)
        send(run.header(paced=bool(first.get("paced"))).to_record())
        oracle: Run | None = None
        for order in orders:
            if order["oracle"] and oracle is None:
                plain = options.but(target=AutogradAdapter(), waivers=None)
                oracle = _watched(Run(plain, choice=choice, measured=run.measured), send)
            run.explains &= not order["again"]
            chosen = oracle if order["oracle"] and oracle is not None else run
            chosen.run_places(
                lambda result: _send_result(result, send),
                on_start=lambda begun: send(started(begun)),
                places=[Place(*place) for place in order["places"]],
            )
            if order["last"] and run.guard is not None:
                run.guard.look()


#: glibc's number of the parameter, and the bytes from which a block of memory is mapped alone.
_MMAP_THRESHOLD, _LARGE_BLOCK = -3, 2**20


def return_large_blocks() -> None:
    """Let glibc return each large block to the system when it is freed; any other allocator stays as it is.

    Otherwise glibc keeps freed blocks of the size of the largest tensors, and the process stays hundreds of MB larger.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


def _watched(run: Run, send: Send) -> Run:
    """Report the results of the canaries like all others."""
    if run.guard is not None:
        run.guard.report_result = lambda result: _send_result(result, send)
    return run


def _made_ready(options: RunOptions, first: Mapping[str, Any]) -> DeviceChoice:
    """Read the worker's number and the devices from the first order, and make the devices ready."""
    from gradconform.devices.prepared import WORKER_VARIABLE, ready  # noqa: PLC0415 (it imports torch)

    os.environ[WORKER_VARIABLE] = str(first["worker"])
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 (after torch's import: no file there can replace it)
    choice = DeviceChoice.from_dict(first["choice"])
    ready(choice, flags_named(options.flags))
    return choice


def _send_result(result: Result, send: Send) -> None:
    """Report a result; if memory or the device is exhausted, end this process, since later checks would fail too."""
    sys.stdout.flush()
    sys.stderr.flush()
    lost = exhaustion(result)
    if lost is None:
        send(finished(result))
        return
    kind, text = lost
    send({"gone": kind, "text": text, "result": result.to_dict()})
    leave()


def exhaustion(result: Result) -> tuple[str, str] | None:
    """Return ``memory`` or ``device`` with the message if ``result`` shows that one of them is exhausted.

    A device error may persist in the process, so that all later checks fail: a test operation decides.
    """
    if result.status not in {"failed", "error", "unsupported"}:
        return None
    if result.exhausted is not None:
        return "memory", result.exhausted
    problem = None if result.device.partition(":")[0] == "cpu" else _problem_of(result.device)
    return None if problem is None else ("device", problem)


def _problem_of(device: str) -> str | None:
    """Return the error of one addition on ``device`` that is read back; None if it is correct."""
    import torch  # noqa: PLC0415 (not needed before there is work)

    try:
        found = (torch.ones(2, device=device) + 1).cpu().tolist()
    except Exception as error:  # noqa: BLE001 (backends raise anything)
        return f"{type(error).__name__}: {error}"
    return None if found == [2.0, 2.0] else f"1 + 1 gives {found}"


def places_to_run(
    places: list[Place], *, oracle: bool = False, again: bool = False, last: bool = False
) -> Mapping[str, Any]:
    """Return the order to run ``places``: on the target, or with plain autograd in its place; perhaps again.

    ``last`` marks the last order.
    """
    return {"places": [list(place) for place in places], "oracle": oracle, "again": again, "last": last}
