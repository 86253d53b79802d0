"""Whether blocks accuse what is right, and what they take: python benchmarks/blocks.py [--sizes S] [--dtypes D …].

Judges every right variant on every block at every size in the dtypes, and prints how many checks fail, goal none, and
the largest error as a share of its bound. With --memory it prints, per rung and block, by how much the peak memory of a
check exceeds what is estimated for it, goal 1.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence

import torch
from figures import Figure

from gradconform import check_stage_backward
from gradconform.contract.extra_ids import ALL
from gradconform.fixtures.blocks.size import rungs
from gradconform.fixtures.blocks.zoo import BLOCKS
from gradconform.reference.variants import VARIANTS
from gradconform.sources.blocks.checks import memory_of
from gradconform.user_input.values import SIZES

DTYPES = ("float32", "float64", "bfloat16", "float16")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=SIZES, default="small")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--variants", nargs="+", choices=sorted(VARIANTS), default=sorted(VARIANTS))
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("BLOCK", "RUNG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.one:
        print(_peak(*options.one))
    elif options.memory:
        _memory(options.sizes)
    else:
        _alarms(options)


def _alarms(options: argparse.Namespace) -> None:
    judged, failed, largest = 0, list[str](), 0.0
    for dtype in options.dtypes:
        began = time.perf_counter()
        of_dtype = 0.0
        for name in options.variants:
            report = check_stage_backward(VARIANTS[name](), dtype=dtype, block=ALL, sizes=options.sizes)
            judged += report.summary["passed"] + report.summary["failed"]
            failed += [f"{name} in {dtype}: {result.check}" for result in report.failures]
            of_dtype = max([of_dtype, *(result.error_ratio or 0.0 for result in report)])
        largest = max(largest, of_dtype)
        print(f"{dtype}: largest error {of_dtype:.3g} of its bound, {time.perf_counter() - began:.0f} s", flush=True)
    for failure in failed:
        print(f"  {failure}")
    print(f"{len(options.variants)} right variants, {judged:,} checks judged, largest error {largest:.3g} of its bound")
    print(Figure("right variants accused", str(len(failed)), "0", "blocks.py"))


def _memory(sizes: str) -> None:
    least = max(_measured(name, "tiny") for name in BLOCKS)
    worst = 0.0
    for size in rungs(sizes):
        for block in BLOCKS.values():
            if not block.takes(size) or size.name.endswith("-2-31"):
                continue
            taken, estimated = _measured(block.name, size.name) - least, memory_of(block, size)
            worst = max(worst, taken / estimated)
            if size.elements > 2**18:
                print(
                    f"{block.name} at {size.name}: {taken / 2**20:,.0f} MiB, estimated {estimated / 2**20:,.0f}",
                    flush=True,
                )
    print(Figure("memory taken, of what is estimated", f"{worst:.2f}", "at most 1", "blocks.py --memory"))


def _measured(block: str, rung: str) -> int:
    """Return the peak memory of a process that judges a block at a rung, in bytes."""
    words = [sys.executable, __file__, "--one", block, rung]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])


def _peak(block: str, rung: str) -> int:
    checks: Sequence[str] = (f"blocks.*.{block}.{rung}",)
    check_stage_backward("reference-split", block=block, sizes="full", checks=checks)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
