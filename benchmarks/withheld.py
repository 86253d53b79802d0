"""Which checks a target is not given because it accumulates into ``main_grad``: python benchmarks/withheld.py.

The target is the right variant ``main-grad-by-hooks``. It is compared with its own claims without
``grads_in_param_grad=False``, so that nothing else is counted.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import replace

import torch

from gradconform import contract
from gradconform.contract.check import Check
from gradconform.reference.variants import VARIANTS
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve

VARIANT = "main-grad-by-hooks"


def withheld(variant: str = VARIANT) -> tuple[dict[str, Check], dict[str, Check]]:
    """Return the checks of profile standard that the variant would be given with ``.grad``, and those it is not."""
    runner = Runner(resolve(VARIANTS[variant]()), device=torch.device("cpu"), dtype=torch.float32)
    in_grad = replace(runner.target.capabilities, grads_in_param_grad=True)
    checks = contract.checks_of().items()
    given = {name: one for name, one in checks if one.profile != "full" and not one.unmet(in_grad)}
    return given, {name: one for name, one in given.items() if one.unmet(runner.claims)}


def table() -> list[str]:
    """Return the counts by area, with the families of the checks that are withheld."""
    given, lost = withheld()
    every = Counter(one.area for one in given.values())
    families: dict[str, set[str]] = defaultdict(set)
    for name, one in lost.items():
        families[one.area].add(".".join(name.split(".")[:2]))
    counts = Counter(one.area for one in lost.values())
    rows = [
        f"| {area} | {number} | {counts[area]} | {', '.join(f'`{one}`' for one in sorted(families[area]))} |"
        for area, number in every.items()
    ]
    total = f"| all | {len(given)} | {len(lost)} | |"
    return ["| area | checks | withheld | from |", "|---|---:|---:|---|", *rows, total]


if __name__ == "__main__":
    sys.stdout.write("\n".join([*table(), ""]))
