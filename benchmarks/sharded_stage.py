"""Measure a run of sharded stages: python benchmarks/sharded_stage.py [STAGE ...] [--profile P].

Prints for each stage the seconds until the first result and of the whole command, less an import of torch, and the
largest process. Goals: the first result within 6 s of torch's import, a standard run within 60 s on two cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import ENVIRONMENT, measured

_STAGES = ("column_row:ColumnRowMLP", "vocabulary:VocabularyLoss", "experts:RoutedExperts")


def seconds_of(*command: str) -> float:
    """Return how long a new process of this Python takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, env={**os.environ, **ENVIRONMENT})
    return time.perf_counter() - started


def run(stage: str, profile: str) -> tuple[float, float, int]:
    """Return the seconds until the first result and of the whole run, and the number of checks."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records.ndjson")
        command = [
            sys.executable,
            "-m",
            "gradconform",
            "sharded",
            stage,
            "--profile",
            profile,
            "--ndjson",
            str(records),
        ]
        started, first = time.perf_counter(), None
        with subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                if first is None and records.exists() and '"status"' in records.read_text(encoding="utf-8"):
                    first = time.perf_counter() - started
                time.sleep(0.02)
        whole = time.perf_counter() - started
        checks = records.read_text(encoding="utf-8").count('"status"')
        return whole if first is None else first, whole, checks


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = [f"gradconform.reference.sharded.{one}" for one in _STAGES]
    parser.add_argument("stages", nargs="*", metavar="STAGE", default=default, help="as for gradconform sharded")
    parser.add_argument("--profile", default="standard")
    options = parser.parse_args()
    imported = min(seconds_of("-c", "import torch") for _ in range(2))
    print(f"an import of torch takes {imported:.1f} s\n")
    print("| stage | checks | first result | whole run |\n|---|---:|---:|---:|")
    for stage in options.stages:
        first, whole, checks = run(stage, options.profile)
        print(f"| `{stage}` | {checks} | {first - imported:.1f} s | {whole - imported:.1f} s |", flush=True)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"\nThe largest process took {largest} MB. {measured('benchmarks/sharded_stage.py')}")


if __name__ == "__main__":
    main()
