"""The peak resident size of a run, beyond torch's import: python benchmarks/memory.py [TARGET] [--profile P].

Prints the peak after a run minus the resident size after `import torch`, in a new process each; goal 150 MB. What torch
imports late (checkpointing imports its compiler) is told apart: it is torch's, and the goal leaves no room for it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

GOAL_MB = 150.0


def peak_mb() -> float:
    """Return the peak resident size of this process."""
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def peak_in_new_process(*arguments: str) -> float:
    """Return the peak resident size of this script in a new process."""
    command = [sys.executable, __file__, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(stage: str, target: str, profile: str) -> None:
    """Do one of the things to be measured, and print the peak."""
    import torch  # noqa: PLC0415 (its import is what is measured)

    if stage == "compiler":
        __import__("torch._dynamo")
    elif stage == "run":
        from gradconform.session import Session  # noqa: PLC0415 (as above)

        torch.set_num_threads(1)
        Session(target, profile=profile).run()
    print(peak_mb())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--profile", default="standard")
    parser.add_argument("--measure", choices=["torch", "compiler", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.target, options.profile)
        return
    torch_mb, compiler_mb, run_mb = (
        peak_in_new_process(options.target, "--profile", options.profile, "--measure", stage)
        for stage in ("torch", "compiler", "run")
    )
    print(f"after import of torch {torch_mb:.0f} MB, with what checkpointing imports {compiler_mb:.0f} MB")
    print(f"peak of a {options.profile} run of {options.target} {run_mb:.0f} MB")
    print(f"difference to torch's import {run_mb - torch_mb:.0f} MB; goal {GOAL_MB:.0f} MB")
    print(f"of which torch's late import {compiler_mb - torch_mb:.0f} MB, the run itself {run_mb - compiler_mb:.0f} MB")


if __name__ == "__main__":
    main()
