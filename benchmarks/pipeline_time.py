"""How long whole pipelines take: all seven schedules of torch on two ranks, from the shell.

    python benchmarks/pipeline_time.py [TARGET …]

Prints wall-clock seconds per target; the goal is 90 s on two cores. The ranks are processes of one thread each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

GOAL_S = 90


def main() -> None:
    """Time the command on each target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=["torch", "reference-split"], metavar="TARGET")
    for target in parser.parse_args().targets:
        command = [sys.executable, "-m", "gradconform", "pipeline", target, "--schedule", "all", "--ranks", "2"]
        started = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        seconds = time.perf_counter() - started
        print(f"{target}: {seconds:.1f} s, exit code {done.returncode}; goal {GOAL_S} s")
        print(f"  {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    main()
