"""Plants each named fault in a device and judges its operation there; prints a JSON line per fault.

The device is ``abacus``, or one that an argument names, such as ``--device=cuda``: there, the wrong kernel is a
function of the device's own. With ``--profile=quick`` or ``standard``, the samples are those of a run of all
operations. A process of its own: torch must know the device before its first backward.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from functools import partial
from typing import Any

import torch

from gradconform import check_stage_backward
from tests.devices.planted import planted, planted_over
from tests.devices.planted_faults import FAULTS, PlantedFault


def planted_in(device: str, fault: PlantedFault) -> contextlib.AbstractContextManager[None]:
    """Return a context in which the device's kernel is wrong: that of ``abacus`` runs on the CPU's tensors."""
    if device != "abacus":
        return planted_over(fault.kernel, fault.wrong, "CUDA" if device == "cuda" else "PrivateUse1")
    packet, _, overload = fault.kernel.partition(".")
    right = getattr(getattr(torch.ops.aten, packet), overload or "default")
    run = importlib.import_module(device).run
    return planted(fault.kernel, partial(run, partial(fault.wrong, right)), "PrivateUse1")


def judged(name: str, device: str, profile: str | None) -> dict[str, Any]:
    """Return the kernels that the kit reports with a planted fault, the first one first, and the time it took.

    Without a profile the operation is judged alone, with the samples of a named one and the time of its plan.
    """
    fault = FAULTS[name]
    begun = time.process_time()
    with planted_in(device, fault):
        options: dict[str, Any] = {
            "operation": fault.operation if profile is None else "all",
            "oracle": "edges",
            "checks": f"ops.edges.{fault.operation}",
            "profile": profile or "quick",
        }
        report = check_stage_backward("reference-split", device=device, **options)
    (result,) = report
    seconds = time.process_time() - begun if profile is None else result.duration_s
    causes = [finding["cause"]["names"][0] for finding in result.findings]
    reported = [name.removeprefix("aten::") for name in causes]
    return {
        "fault": name,
        "expected": fault.name,
        "reported": reported,
        "status": result.status,
        "seconds": round(seconds, 2),
        "compared": (result.oracle or {}).get("compared", 0),
    }


def main(words: list[str]) -> None:
    """Judge the named faults, or all, on the named device, in the named profile."""
    given = dict(word.removeprefix("--").split("=") for word in words if word.startswith("--"))
    device = given.get("device", "abacus")
    if device == "abacus":
        importlib.import_module(device)
    for name in [word for word in words if not word.startswith("--")] or FAULTS:
        print(json.dumps(judged(name, device, given.get("profile"))), flush=True)  # noqa: T201 (the output)


if __name__ == "__main__":
    main(sys.argv[1:])
