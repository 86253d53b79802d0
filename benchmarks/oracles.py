"""What the oracles find that need no second device: python benchmarks/oracles.py [--device D] [--dtype T …].

Prints per oracle and dtype how many values were compared (kernel calls, samples, gradients), in how many seconds, and
each operation that is accused, with what it did. Goal: tens of thousands of kernel calls in two minutes, and no
accusation without a script that confirms it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter

import torch
from figures import Figure, measured

from gradconform.contract.extra_ids import ALL, ORACLES
from gradconform.devices.dtypes import dtype_named
from gradconform.results import Result
from gradconform.run.judging import judged
from gradconform.sources.operations.by_oracles import by_oracles
from gradconform.sources.operations.oracle_checks import OracleCheck, select_checks
from gradconform.sources.operations.oracles import OperationOracles
from gradconform.sources.operations.selected import select_checks as on_operations

CALLS, SECONDS = 20_000, 120


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--operation", nargs="+", default=[ALL])
    parser.add_argument("--oracle", nargs="+", default=[ALL])
    parser.add_argument("--profile", default="quick")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    operations = on_operations(options.operation, options.profile)
    checks = [one for one in select_checks(options.oracle, operations).checks if isinstance(one, OracleCheck)]
    print(measured("python benchmarks/oracles.py"))
    for dtype in options.dtype:
        for oracle in ORACLES:
            own = [one for one in checks if one.oracle == oracle and (not one.dtypes or dtype in one.dtypes)]
            if own:
                _judge(own, torch.device(options.device), dtype)


def _judge(checks: list[OracleCheck], device: torch.device, dtype: str) -> None:
    oracles = OperationOracles(device, dtype_named(dtype), seed=20)
    started = time.perf_counter()
    results = [judged(oracles, check) for check in checks]
    taken = time.perf_counter() - started
    for found in by_oracles(results):
        print(f"\n{dtype}, {taken:.0f} s: {found.text}")
        rate = f"{found.compared / taken * SECONDS:,.0f} in two minutes"
        print(Figure(f"{found.oracle} in {dtype}", rate, f"{CALLS:,} kernel calls", "oracles.py"))
    print(f"{dict(Counter(result.status for result in results))}")
    for name, several in _accused(results).items():
        print(f"  {len(several)} × {name}: {several[0].check}: {several[0].findings[0]['text'][:300]}")
    for result in results:
        if (result.status, result.kind) == ("error", "kit"):
            print(f"  {result.check}: {result.message}")
    slowest = sorted(results, key=lambda result: -result.duration_s)[:3]
    print(f"  slowest: {', '.join(f'{one.check} {one.duration_s:.1f} s' for one in slowest)}")


def _accused(results: list[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        if (result.status, result.kind) == ("error", "device"):
            found.setdefault(str(result.findings[0]["where"]), []).append(result)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    main()
