"""What the installed but unused plugin costs at pytest's start: python benchmarks/startup.py [--rounds N].

Takes the processor time of `pytest --collect-only` in a folder with one empty test, with the plugin and with
`-p no:gradconform`, in turn, each first every other time, and prints the median difference of the pairs; goal 5 ms.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import ENVIRONMENT, Figure

GOAL_MS = 5.0
PYTEST = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")


def milliseconds(folder: Path, *options: str) -> float:
    """Return the processor time of one pytest run: other processes do not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*PYTEST, *options], cwd=folder, check=True, capture_output=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(rounds: int = 31) -> Figure:
    """Start pytest with the plugin and without it, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n", encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        milliseconds(folder)
        without = ("-p", "no:gradconform")
        milliseconds(folder, *without)
        pairs = []
        for number in range(rounds):
            ways = ((), without)[:: 1 if number % 2 else -1]
            took = {way: milliseconds(folder, *way) for way in ways}
            pairs.append((took[()], took[without]))
    used = statistics.median(one for one, _ in pairs)
    more = [one - other for one, other in pairs]
    spread = statistics.quantiles(more, n=4)
    value = f"{statistics.median(more):.1f} ms (quartiles {spread[0]:.1f} to {spread[2]:.1f}) of {used:.0f} ms"
    return Figure("what the unused plugin adds to pytest's start", value, f"{GOAL_MS:.0f} ms", "startup.py")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    print(measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
