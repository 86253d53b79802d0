"""How long a run takes from the shell, import of torch included: python benchmarks/shell_time.py [TARGET].

Goals, on two cores: profile quick 5 s, standard 30 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOALS_S = {"quick": 5.0, "standard": 30.0, "full": None}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", default="reference-split")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for profile, goal in GOALS_S.items():
        command = [str(Path(sys.executable).with_name("gradconform")), "run", options.target, "--profile", profile]
        times: list[float] = []
        for _ in range(options.rounds):
            started = time.perf_counter()
            code = subprocess.run(command, capture_output=True, check=False).returncode
            times.append(time.perf_counter() - started)
        wanted = f"goal {goal:.0f} s" if goal else "no goal"
        print(f"profile {profile}: {statistics.median(times):.2f} s (exit code {code}); {wanted}")


if __name__ == "__main__":
    main()
