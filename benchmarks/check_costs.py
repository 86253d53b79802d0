"""What each kind of check of a device costs: python benchmarks/check_costs.py [--every N] [--profile PROFILE].

Runs the checks of 'gradconform device', or every Nth of each kind, in this process on the CPU and on the device of
docs/devices.md, and prints PACE and COSTS of conformance/run/forecast.py: the processor time of a step of the pace,
and of a check of each kind, beside the device and on it. The two devices tell these parts apart, since a check has the
same work beside both. The first check of each kind is not counted, as it loads libraries. Its last lines are the sums
on both devices, by kind.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

from gradconform.cli.arguments import DEVICE_DEFAULTS
from gradconform.devices.pace import pace
from gradconform.report.device_verdict import RIGHT
from gradconform.run.forecast import kind_of
from gradconform.run.judging import one_thread
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

ROOT = Path(__file__).parents[1]
DEVICE = "abacus"


def measure(every: int, profile: str) -> tuple[dict[str, float], dict[str, dict[str, list[float]]]]:
    """Return the pace of both devices, and the seconds of each counted check by kind and device."""
    given = {**DEVICE_DEFAULTS, "fault": ["all"], "profile": profile, "dtype": ["float32"]}
    given = {
        name: [value] if isinstance(value, str) and name not in {"profile", "sizes"} else value
        for name, value in given.items()
    }
    options = RunOptions.of(RIGHT, device=["cpu", DEVICE], device_plugins=[DEVICE], with_contract=True, **given)
    run = Run(options)
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    seen: dict[tuple[str, str], int] = defaultdict(int)
    with one_thread():
        paces = {name: pace(torch.device(name), time.process_time) or 0.0 for name in ("cpu", DEVICE)}
        for item in run.plan.items:
            kind = kind_of(item.check.id)
            seen[kind, item.device] += 1
            if seen[kind, item.device] % every and seen[kind, item.device] > 1:
                continue
            began = time.process_time()
            run.run_item(item)
            if seen[kind, item.device] > 1:
                seconds[kind][item.device].append(time.process_time() - began)
    return paces, {kind: {**of, "planned": [seen[kind, "cpu"]]} for kind, of in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every Nth check of each kind")
    parser.add_argument("--profile", default="quick")
    given = parser.parse_args()
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"<!-- test: file {DEVICE}.py -->\n```python\n(.*?)```", page, flags=re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{DEVICE}.py").write_text(code, encoding="utf-8")
        sys.path.insert(0, folder)
        paces, found = measure(given.every, given.profile)
    slower = paces[DEVICE] / paces["cpu"]
    print(f"PACE = {paces['cpu']:.2g}  # {slower:.1f} times as long on {DEVICE}\nCOSTS = {{")
    means = {
        kind: [sum(of[device]) / len(of[device]) for device in ("cpu", DEVICE)]
        for kind, of in sorted(found.items())
        if of.get("cpu") and of.get(DEVICE)
    }
    for kind, (here, there) in means.items():
        on_device = min(here, max(0.0, (there - here) / (slower - 1)))
        print(f'    "{kind}": Cost({here - on_device:.2g}, {on_device:.2g}),')
    print("}")
    for kind, (here, there) in means.items():
        planned = int(found[kind]["planned"][0])
        print(f"{kind}: {planned} checks, {planned * here:.1f} s on the CPU, {planned * there:.1f} s on {DEVICE}")


if __name__ == "__main__":
    main()
