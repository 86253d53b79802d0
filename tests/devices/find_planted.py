"""Plants each named fault in the device ``abacus`` and judges its operation there; prints a JSON line per fault.

A process of its own: torch must know the device before its first backward.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import abacus
import torch

from gradconform import check_stage_backward
from tests.devices.planted import planted
from tests.devices.planted_faults import FAULTS


def judged(name: str) -> dict[str, Any]:
    """Return the kernels that the kit reports with a planted fault, the first one first, and the time it took."""
    fault = FAULTS[name]
    packet, _, overload = fault.kernel.partition(".")
    right = getattr(getattr(torch.ops.aten, packet), overload or "default")
    begun = time.process_time()
    with planted(fault.kernel, partial(abacus.run, partial(fault.wrong, right)), "PrivateUse1"):
        options: dict[str, Any] = {
            "operation": fault.operation,
            "oracle": "edges",
            "checks": "ops.edges.*",
            "profile": "quick",
        }
        report = check_stage_backward("reference-split", device="abacus", **options)
    (result,) = report
    causes = [finding["cause"]["names"][0] for finding in result.findings]
    reported = [name.removeprefix("aten::") for name in causes]
    return {
        "fault": name,
        "expected": fault.name,
        "reported": reported,
        "status": result.status,
        "seconds": round(time.process_time() - begun, 2),
        "compared": (result.oracle or {}).get("compared", 0),
    }


if __name__ == "__main__":
    for one in sys.argv[1:] or FAULTS:
        print(json.dumps(judged(one)), flush=True)  # noqa: T201 (the output of this process)
