"""docs/contract.md, made from the checks: ``gradconform contract > docs/contract.md``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from gradconform.contract import checks_of
from gradconform.contract.check import Check
from gradconform.naming import PROFILES

from .checks import FORMULA, factors

#: The rows of torch's own suite, in its order, and what each one does.
SEED_SUITE = {
    "test_stage_backward": "one full backward from a loss; input and parameter gradients",
    "test_stage_backward_input": "I alone: the gradients of the inputs, and `.grad` of the inputs",
    "test_stage_backward_weight": "I, then W with `retain_graph`; parameter gradients",
    "test_stage_backward_weight_multiple_iters": "ten iterations of I and W",
    "test_stage_backward_weight_grad_validation": (
        "gradient tuples of one, two and more entries, and None among them; "
        "there nothing is asserted but that no error is raised, here the values are"
    ),
}

_HEAD = """\
# The contract, version {version}

<!-- Made by `gradconform contract > docs/contract.md`; a test holds that it is current. Edit the checks, not this. -->

A stage backward is the code that runs the backward pass of one pipeline-parallel stage: B, the full backward, or I
(input gradients) and W (weight gradients), the split backward. This page is the whole of what `gradconform run TARGET`
asks of one. Each check is one requirement with an id `area.topic.case`; MUST and SHOULD are meant as in RFC 2119. A new
check enters only a new version of the contract.

"""

_RULE = f"""\
## How a value is judged

Each gradient `g` is compared with two others: `g_autograd`, that of plain autograd on the same device, in the same
dtype, through the same program; and `g64`, that of plain autograd in float64. It is right when

    {FORMULA}

and the same holds with the root mean square in place of the maximum. `scale` is the largest partial sum met on the way:
of the maximum of `|g64|` of each micro-batch's own gradient, of what stood before the first action, and of their sum,
the largest. Nothing is multiplied by the number of elements, because that hides elements that are wrong.

- The factor 2 allows an implementation to round as badly as plain autograd does, and once more, but in another order.
- `c * eps * scale` is the floor for the case that plain autograd happens to round luckily. `c` was measured
  (tolerances.toml).
- The error divided by the bound is the headroom that a report gives: 0 is bit-equal to plain autograd, above 1 is
  wrong.
- In float64 plain autograd itself is the reference, and the floor alone decides.
- NaN and inf stand exactly where plain autograd has them. None is None and a tensor a tensor; shape, dtype, device and
  layout are equal. Integers are equal.
- Parameter gradients are compared after every action, not only at the end: a final sum cannot tell two W that were
  swapped, or one that was doubled and one that was dropped.

"""

_VERDICTS = """\
## Verdicts

| status | meaning |
|---|---|
| passed | the requirement is met |
| failed | it is not; a failed MUST decides the verdict, a failed SHOULD is told in full, and decides with `--strict` |
| unsupported | the target does not claim what the check needs, or refuses it in words; never a pass |
| error | it could not be judged; the kind says by whose doing: `kit`, `environment` or `adapter` |
| not_run | it was planned and has no result |
| waived | it failed in the very way that a waiver expects; told, and never a pass |
| unexpectedly_passed | it has a waiver and passed; told, and decides with `--strict` |

A target conforms when every check of the manifest (all checks of the profile, on every device and dtype asked for) has
a result, at least one was judged, and none decides against it. A run of chosen checks only (`--checks`,
`--exclude-checks`) never conforms, and a shard has no verdict on the whole. A target that would not conform but for its
waivers *conforms with waivers*. Only profile `full`, which also tries what is not claimed, supports a statement of
conformance.

| exit code | meaning |
|---|---|
| 0 | conforms |
| 1 | does not conform |
| 2 | usage: a bad target, option, device, report or waiver; or an idle waiver after a whole run of `full` |
| 3 | error of the kit |
| 4 | error of the environment |
| 5 | incomplete: nothing failed, but fewer checks ran than the manifest has |
| 6 | `compare`: the new run is worse than the one before |
| 130 | interrupted by ctrl-C; what ran until then is reported |

"""


def contract_page(version: str) -> str:
    """Return the text of docs/contract.md for a version of the contract."""
    found = list(checks_of(version).values())
    head = _HEAD.format(version=version)
    parts = [head, _profiles(found), _RULE, _factors(), _VERDICTS, _seed_suite(found), "## Checks\n\n"]
    parts += [_area(area, list(group)) for area, group in groupby(found, key=lambda check: check.area)]
    return "".join(parts).rstrip() + "\n"


def _table(*rows: Sequence[str]) -> str:
    """Return a Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n\n"


def _profiles(checks: Sequence[Check]) -> str:
    """Count the checks of each area in each profile, which holds those of the smaller ones."""
    areas = sorted({check.area for check in checks})
    counts = Counter(
        (area, profile)
        for check in checks
        for area in (check.area, "all")
        for profile in PROFILES[PROFILES.index(check.profile) :]
    )
    rows = [[area, *(str(counts[area, profile]) for profile in PROFILES)] for area in (*areas, "all")]
    return f"{len(checks)} checks, by area and profile; each profile holds the checks of those before it:\n\n" + _table(
        ["area", *PROFILES], *rows
    )


def _factors() -> str:
    return _table(["dtype", "c", "eps"], *([name, f"{c:g}", f"{eps:.4g}"] for name, c, eps in factors()))


def _seed_suite(checks: Sequence[Check]) -> str:
    """Return which checks stand for which test of torch's own suite."""
    rows = []
    for test, what in SEED_SUITE.items():
        ids = [check.id for check in checks if check.seed and test in re.split(r"[,\s]+", check.seed)]
        rows.append([f"`{test}`", what, ", ".join(f"`{name}`" for name in ids) or "none yet"])
    rows.append(['`devices = ["cpu", "cuda", "hpu", "xpu"]`', "a list of devices", "no list: `--device` takes any"])
    return (
        "## The seed suite\n\ntorch's own tests of its stage backward (test/distributed/pipelining/test_backward.py), "
        "and the checks that cover each.\n\n" + _table(["seed test", "what it does", "checks"], *rows)
    )


def _area(area: str, checks: Sequence[Check]) -> str:
    module = importlib.import_module(f"gradconform.contract.{area}")
    intro = " ".join((inspect.getdoc(module) or "").split())
    topics = groupby(sorted(checks, key=_topic), key=_topic)
    return f"### {area}\n\n{intro}\n\n" + "".join(_topics(topics))


def _topic(check: Check) -> str:
    return check.id.rpartition(".")[0]


def _topics(topics: Iterator[tuple[str, Iterator[Check]]]) -> Iterator[str]:
    for topic, group in topics:
        checks = list(group)
        yield f"#### {topic}\n\n"
        for why, catches in dict.fromkeys((check.why, check.catches) for check in checks):
            yield f"{why}\n*Catches:* {catches}\n\n"
        yield _table(
            ["id", "level", "profile", "requirement"],
            *([f"`{check.id}`", check.level, check.profile, check.requirement] for check in checks),
        )
