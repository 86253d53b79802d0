"""Which checks profile quick needs: python benchmarks/quick_choice.py MATRIX.json RUN.json [--most N].

MATRIX.json is what ``gradconform selftest --whole --json MATRIX.json`` writes: the checks that each known fault fails
in a whole run, of any profile. Checks that did not run count by the faults that name them. RUN.json is the report of
``gradconform run reference-split``, for the time of each check. The script prints how many faults the present profile
quick finds by a MUST, how many the core and a greedy choice of others find, and the checks to add and to remove. A
check counts the more, the more faults it finds that no check before it finds, and the less time it takes. The choice
has no stages of a class of their own, which are kept by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradconform.contract import checks_of
from gradconform.contract.areas import CORE
from gradconform.contract.check import Check
from gradconform.reference.faults import FAULTS

#: A check of this many seconds counts half as much as one without a cost.
_HALF = 0.03


def killing(matrix: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, frozenset[str]]:
    """Return the faults that each MUST check of profile standard finds."""
    failed = {one["name"]: set(one["failed"]) for one in matrix["outcomes"] if one["role"] == "fault"}
    ran = set(matrix["checks"])
    return {
        check: frozenset(
            name for name, own in failed.items() if check in own or (check not in ran and FAULTS[name].names(check))
        )
        for check, one in checks.items()
        if one.level == "MUST" and one.profile != "full"
    }


def chosen(
    kills: Mapping[str, frozenset[str]], seconds: Mapping[str, float], start: Sequence[str], most: int
) -> list[str]:
    """Return at most ``most`` checks with ``start`` among them, in the order in which they find new faults."""
    result = list(start)
    left = frozenset().union(*kills.values()).difference(*(kills.get(check, frozenset()) for check in start))
    while left and len(result) < most:
        best = max(sorted(kills), key=lambda check: len(kills[check] & left) / (1 + seconds.get(check, 1.0) / _HALF))
        if not kills[best] & left:
            break
        result.append(best)
        left -= kills[best]
    return result


def main() -> None:
    """Print the choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--most", type=int, default=150, help="choose at most N checks (default: 150)", metavar="N")
    given = parser.parse_args()
    checks = checks_of()
    matrix = json.loads(given.matrix.read_text(encoding="utf-8"))
    seconds = {r["check"]: r["duration_s"] for r in json.loads(given.run.read_text(encoding="utf-8"))["results"]}
    kills = killing(matrix, checks)
    faults = {one["name"] for one in matrix["outcomes"] if one["role"] == "fault" and not one["untried"]}
    quick = [check for check, one in checks.items() if one.profile == "quick"]
    core = [check for check in CORE if check in checks]
    better = chosen(kills, seconds, core, given.most)
    for name, some in (("present", quick), ("chosen", better)):
        found = frozenset().union(*(kills.get(check, frozenset()) for check in some)) & faults
        cost = sum(seconds.get(check, 0.0) for check in some)
        sys.stdout.write(
            f"{name}: {len(some)} checks find {len(found)} of {len(faults)} faults ({len(found) / len(faults):.1%}) "
            f"in {cost:.1f} s of checks\n"
        )
    sys.stdout.write("\n".join(["add:", *sorted(set(better) - set(quick)), "", "no need of:"]) + "\n")
    sys.stdout.write("\n".join([*sorted(set(quick) - set(better)), ""]))


if __name__ == "__main__":
    main()
