"""What each kind of check of a device costs: python benchmarks/check_costs.py [--every N] [--profile PROFILE].

Runs the checks of 'gradconform device', or every Nth of each kind, on the CPU and on the device of docs/devices.md, and
prints PACE and COSTS of conformance/run/forecast.py: the processor time of a step of the pace, and of a check of each
kind, beside the device and on it. The two devices tell these parts apart: beside both, a check has the same work.
So each check runs on both, also one that a run has on one of them only.
The first check of each kind is not counted, as it loads libraries; neither is one that could not be judged.
Its last lines are the sums by kind, of the checks that a run has on the device of docs/devices.md.

Each device has a process, which is started again after a check that ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from device_faults import write_device

from gradconform.cli.arguments import DEVICE_DEFAULTS
from gradconform.contract.check import Check
from gradconform.devices.pace import pace
from gradconform.run.forecast import kind_of
from gradconform.run.in_short import RIGHT
from gradconform.run.judging import one_thread
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

DEVICE = "abacus"


def run_checks(device: str, given: argparse.Namespace) -> None:
    """Run the checks on a device from the given place on; print the pace, each check that begins, and its seconds."""
    options = {**DEVICE_DEFAULTS, "fault": "all", "profile": given.profile, "device": device, "plan": given.plan}
    plugins = [] if device == "cpu" else [device]
    with mock.patch.object(Check, "runs_on", lambda check, _, dtype: not check.dtypes or dtype in check.dtypes):
        # The kit itself is patched here, which a guard would report in place of each result.
        run = Run(RunOptions.of(RIGHT, device_plugins=plugins, with_contract=True, **options), guarded=False)
    counts = Counter(kind_of(item.check.id) for item in run.plan.items if item.check.runs_on(DEVICE, item.dtype))
    seen: Counter[str] = Counter()
    with one_thread():
        print(json.dumps({"pace": pace(torch.device(device), time.process_time), "counts": counts}), flush=True)
        for at, item in enumerate(run.plan.items):
            kind = kind_of(item.check.id)
            seen[kind] += 1
            if at < given.at or (seen[kind] % given.every and seen[kind] > 1):
                continue
            print(json.dumps({"at": at}), flush=True)
            began = time.process_time()
            judged = run.run_item(item).status in {"passed", "failed"}
            seconds = time.process_time() - began if judged and seen[kind] > 1 else None
            print(json.dumps({"kind": kind, "seconds": seconds}), flush=True)


def measured(device: str, given: argparse.Namespace, folder: str) -> Iterator[dict[str, object]]:
    """Yield the records of the processes of a device."""
    words = ["--every", str(given.every), "--profile", given.profile, *(["--plan", given.plan] if given.plan else [])]
    at = 0
    while True:
        began_at = at
        command = [sys.executable, __file__, "--device", device, "--at", str(at), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None  # noqa: S101 (a pipe)
            for line in running.stdout:
                record = json.loads(line)
                at = record.get("at", at - 1) + 1
                yield record
        if running.returncode == 0:
            return
        if at == began_at:
            sys.exit(f"the checks on {device} cannot start")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run every Nth check of each kind")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--plan", help="a plan file of 'gradconform device'")
    parser.add_argument("--device", help=argparse.SUPPRESS)
    parser.add_argument("--at", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device is not None:
        run_checks(given.device, given)
        return
    paces, counts = dict[str, float](), dict[str, int]()
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        write_device(Path(folder))
        for device in ("cpu", DEVICE):
            for record in measured(device, given, folder):
                if "pace" in record:
                    paces[device], counts = record["pace"], record["counts"]
                elif record.get("seconds") is not None:
                    seconds[record["kind"]][device].append(record["seconds"])
    if missing := counts.keys() - seconds.keys():
        sys.exit(f"no check of these kinds was judged: {', '.join(sorted(missing))}")
    report(paces, counts, seconds)


def report(paces: dict[str, float], counts: dict[str, int], seconds: dict[str, dict[str, list[float]]]) -> None:
    """Print the constants and the sums."""
    slower = paces[DEVICE] / paces["cpu"]
    print(f"PACE = {paces['cpu']:.2g}  # {DEVICE}: {slower:.1f} times as long\nCOSTS = {{")
    means = {
        kind: [sum(of[device]) / len(of[device]) if of[device] else 0.0 for device in ("cpu", DEVICE)]
        for kind, of in sorted(seconds.items())
    }
    for kind, (here, there) in means.items():  # without one on the CPU, all of it is on the device
        on_device = min(here, max(0.0, (there - here) / (slower - 1))) if here else there / slower
        print(f'    "{kind}": Cost({max(here - on_device, 0):.2g}, {on_device:.2g}),')
    print("}")
    for kind, (here, there) in means.items():
        number = counts.get(kind, 0)
        print(f"{kind}: {number} checks, {number * here:.1f} s on the CPU, {number * there:.1f} s on {DEVICE}")


if __name__ == "__main__":
    main()
