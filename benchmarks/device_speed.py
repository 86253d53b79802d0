"""What a run costs on a device, against the CPU: python benchmarks/device_speed.py [--device simx] [--profile quick].

Runs the right split on the device and on the CPU in this process, in turn, and prints for each: the seconds to the
first check (probe, pre-flight, numeric profile), the seconds of the checks, and per check the copies from the device to
the CPU, how often the CPU waits for them, and what is copied. Copies that do not block wait together; reading one
number of the device (``item``) waits as well. The seconds of the checks are CPU time of this process, so other load on
the machine changes them little; those to the first check are wall time, as the probe has a process of its own.

The last lines compare three ratios: the kit's time on the device over that on the CPU, the same of plain forward and
backward of the profile's stages without the kit, and the lower limit. On a device, the kit does all that it does on the
CPU, and also runs plain autograd on the CPU to verify the device. So the limit is the second ratio plus the share of
plain autograd in the CPU's time.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradconform.devices.device import device_of
from gradconform.drive.oracle import Oracle, OracleError
from gradconform.fixtures.inputs import draw_arguments, place_arguments
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.trees import tensors
from gradconform.trial.materials import Materials

PLUGINS = {"simx": "gradconform.plugins.devices.simx"}
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")


class Copies(TorchDispatchMode):
    """Counts what goes from a device to the CPU, and how often the CPU waits for it."""

    def __init__(self) -> None:
        """Begin at none."""
        super().__init__()
        self.copies = self.waits = self.bytes = 0
        self._together = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch._dynamo would be imported, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count it."""
        del types
        given = kwargs or {}
        found = func(*args, **given)
        name = func._schema.name  # noqa: SLF001 (what torch calls the operation)
        source = args[1] if name == "aten::copy_" else args[0] if args else None
        away = isinstance(source, Tensor) and not source.is_cpu
        if name in COPIES and away and all(one.is_cpu for one in tensors(found)):
            self.copies += 1
            self.bytes += source.numel() * source.element_size()
            together = bool(given.get("non_blocking")) or any(one is True for one in args)
            self.waits += not (together and self._together)
            self._together = together
        elif name == "aten::_local_scalar_dense" and away:
            self.waits += 1
            self._together = False
        elif not (name.startswith(("aten::view", "aten::slice", "aten::detach"))):
            self._together = False
        return found


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took: seconds to the first check and of the checks, and what was copied."""

    start_s: float
    checks_s: float
    checks: int
    copied: Copies


def cost(device: str, profile: str) -> Cost:
    """Return what a run of the right split on ``device`` takes."""
    began = time.perf_counter()
    plugins = [PLUGINS[device]] if device in PLUGINS else []
    run = Run(RunOptions.of("reference-split", device=device, profile=profile, device_plugins=plugins), diagnose=False)
    start = time.perf_counter() - began
    began = time.process_time()
    report = run.run()
    checks = time.process_time() - began
    copied = Copies()
    with copied:
        counted = Run(RunOptions.of("reference-split", device=device, profile=profile, device_plugins=plugins)).run()
    if [result.status for result in counted] != [result.status for result in report]:
        msg = "counting changes what the checks find"
        raise SystemExit(msg)
    return Cost(start, checks, len(report.results), copied)


def plain(device: str, profile: str) -> float:
    """Return the seconds of plain forward and backward of the stages of a profile on ``device``, five times each."""
    run = Run(RunOptions.of("reference-split", profile=profile))
    here, taken = torch.device(device), 0.0
    cases = {case.name: case for item in run.plan.items for trial in item.check.trials for case in trial.stages}
    for case in cases.values():
        try:
            stage = case.make(dtype=torch.float32, device=here, seed=20)
            drawn = draw_arguments(case.inputs, seed=20, dtype=torch.float32)
            args = place_arguments(case.inputs, drawn, stage, here)
            _step(stage, args)
        except (RuntimeError, NotImplementedError):  # the device does not have it
            continue
        began = time.process_time()
        for _ in range(5):
            _step(stage, args)
        device_of(here).synchronize()
        taken += time.process_time() - began
    return taken


def verified(profile: str) -> float:
    """Return the seconds of plain autograd on the CPU, as the kit runs it for every trial of a profile."""
    run, oracle, taken = Run(RunOptions.of("reference-split", profile=profile)), Oracle(torch.device("cpu")), 0.0
    for trial in dict.fromkeys(trial for item in run.plan.items for trial in item.check.trials):
        materials = Materials(trial, dtype=torch.float32, device=oracle.device, seed=20)
        began = time.process_time()
        with contextlib.suppress(OracleError):
            oracle.observe(oracle.references(materials, 1.0))
        taken += time.process_time() - began
    return taken


def _step(stage: torch.nn.Module, args: tuple[Any, ...]) -> None:
    outputs = [one for one in tensors(stage(*args)) if one.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="simx")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # The device first: it has to be known to torch before the first backward of the process.
    found: dict[str, list[Cost]] = {arguments.device: [], "cpu": []}
    for _ in range(arguments.rounds):
        for device, several in found.items():
            several.append(cost(device, arguments.profile))
    print("device  checks  first start  next start  seconds  copies  waits  KiB per check")
    for device, several in found.items():
        best = min(several, key=lambda one: one.checks_s)
        copied, count = best.copied, best.checks
        starts = f"{several[0].start_s:11.2f} s  {min(one.start_s for one in several):8.2f} s"
        copies = f"{copied.copies / count:6.1f}  {copied.waits / count:5.1f}  {copied.bytes / count / 1024:5.1f}"
        print(f"{device:6}  {count:6}  {starts}  {best.checks_s:7.2f}  {copies}")
    on_cpu = min(one.checks_s for one in found["cpu"])
    ratio = min(one.checks_s for one in found[arguments.device]) / on_cpu
    floor = min(plain(arguments.device, arguments.profile) for _ in range(arguments.rounds))
    floor /= min(plain("cpu", arguments.profile) for _ in range(arguments.rounds))
    limit = floor + min(verified(arguments.profile) for _ in range(arguments.rounds)) / on_cpu
    print(f"{arguments.device} takes {ratio:.2f} times the CPU's time; plain forward and backward {floor:.2f} times")
    print(f"lower limit, with plain autograd on the CPU to verify the device: {limit:.2f} times")


if __name__ == "__main__":
    main()
