"""The peak resident size of a run, beyond torch's own: python benchmarks/memory.py [TARGET] [--profile P].

Prints the peak of a run minus that of torch, in a new process each; goal 100 MB. Torch is here what a run has of it:
`import torch`, and what torch imports late (checkpointing imports its compiler), which is told as well.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

from figures import Figure

GOAL_MB = 100.0


def peak_mb() -> float:
    """Return the peak resident size of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage gives on Linux is no less than what the process that started this one had
        lines = status.read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**10
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def peak_in_new_process(*arguments: str) -> float:
    """Return the peak resident size of this script in a new process."""
    command = [sys.executable, __file__, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(target: str = "reference-split", profile: str = "standard") -> list[Figure]:
    """Return the figures of one run."""
    torch_mb, compiler_mb, run_mb = (
        peak_in_new_process(target, "--profile", profile, "--measure", stage) for stage in ("torch", "compiler", "run")
    )
    what = f"peak memory of a {profile} run beyond torch's"
    beyond = f"{run_mb - compiler_mb:.0f} MB, and {compiler_mb - torch_mb:.0f} MB that torch imports late"
    return [Figure(what, beyond, f"{GOAL_MB:.0f} MB", "memory.py")]


def do(stage: str, target: str, profile: str) -> None:
    """Do one of the things to be measured, and print the peak."""
    import torch  # noqa: PLC0415 (its import is what is measured)

    if stage == "compiler":
        __import__("torch._dynamo")
    elif stage == "run":
        from gradconform.run.options import RunOptions  # noqa: PLC0415 (as above)
        from gradconform.run.run import Run  # noqa: PLC0415 (as above)
        from gradconform.workers.serving import return_large_blocks  # noqa: PLC0415 (as above)

        return_large_blocks()
        torch.set_num_threads(1)
        Run(RunOptions.of(target, profile=profile)).run()
    print(peak_mb())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--measure", choices=["torch", "compiler", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        do(options.measure, options.target, options.profile)
        return
    print(*measure(options.target, options.profile), sep="\n")


if __name__ == "__main__":
    main()
