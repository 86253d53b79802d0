"""What a rank that is killed costs a pipeline: from the kill to the first action of the next case.

    python benchmarks/killed_rank.py [--kills N]

Kills a rank of a run of all schedules of torch N times, each in the middle of a case, and prints what each cost and,
to compare, what the import of torch and of what a rank needs takes in a fresh interpreter. The goal is 5 s.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from gradconform.pipeline.exchange import Mark, read_mark

GOAL_S = 5
_PERIOD_S = 0.01


def main() -> None:
    """Kill ranks, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, metavar="N")
    kills = parser.parse_args().kills
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import gradconform.pipeline.rank_process"], check=True)
    print(f"import of what a rank needs: {time.perf_counter() - started:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        costs = _costs(Path(folder), kills)
    each = " ".join(f"{cost:.1f}" for cost in costs)
    print(f"{len(costs)} ranks killed: {each} s; median {statistics.median(costs):.1f} s, goal {GOAL_S} s")


def _costs(folder: Path, kills: int) -> list[float]:
    """Return the seconds that each of so many kills cost a run that has its temporary files in a folder."""
    command = [sys.executable, "-m", "gradconform", "pipeline", "reference-split", "--schedule", "all"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    costs: list[float] = []
    moments = random.Random(0)  # noqa: S311 (moments, no secrets)
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        mark = _next_action(run, folder, "")
        while mark is not None and len(costs) < kills:
            time.sleep(moments.uniform(0, 0.2))
            marks = _marks(folder)
            killed = moments.choice(marks)
            os.kill(killed.process, signal.SIGKILL)
            since = time.perf_counter()
            mark = _next_action(run, folder, killed.case, not_by={mark.process for mark in marks})
            if mark is not None:
                costs.append(time.perf_counter() - since)
        run.terminate()
    return costs


def _next_action(
    run: subprocess.Popen[bytes], folder: Path, case: str, not_by: frozenset[int] | set[int] = frozenset()
) -> Mark | None:
    """Wait for an action of another case than this in other processes; None where the run has ended."""
    while run.poll() is None:
        for mark in _marks(folder):
            if mark.case not in {"", case} and mark.action and mark.process not in not_by:
                return mark
        time.sleep(_PERIOD_S)
    return None


def _marks(folder: Path) -> list[Mark]:
    """Return the last mark of each rank of the newest start."""
    with suppress(FileNotFoundError):  # a folder that is removed meanwhile
        starts = sorted(folder.glob("gradconform-*/start-*"), key=lambda start: int(start.name.removeprefix("start-")))
        found = [read_mark(path) for start in starts[-1:] for path in start.glob("rank-*.mark")]
        return [mark for mark in found if mark is not None]
    return []


if __name__ == "__main__":
    main()
