"""docs/contract.md, made from the checks: ``gradconform contract > docs/contract.md``."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from gradconform.bias import STEADY
from gradconform.contract import checks_of
from gradconform.contract.cases import DRAWS
from gradconform.contract.check import Check
from gradconform.contract.explaining import FORMULA, factors, mean_floors
from gradconform.naming import PROFILES

from .page.rendering import render_own

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
    "test_stage_backward_input_ignores_non_tensor_inputs": "I beside an argument that is no tensor",
    "test_stage_backward_input_with_view_output": "I and W of a stage whose output is a view",
    "test_stage_backward_weight_custom_autograd_function": "W of a custom Function whose output is gone",
    "test_stage_backward_multi_output_intermediate": "I and W through a node with several outputs",
    "test_stage_backward_weight_shared_weights": "I and W of a weight that is used twice",
    "test_stage_backward_from_gradient_edge": "B from the edge of an output that is gone",
    "test_stage_backward_mixed_edge_and_tensor_outputs": "B from an edge, a tensor and None",
    "test_stage_backward_edge_keeps_python_autograd_function_alive": "B from the edge of a custom Function",
    "test_stage_backward_input_from_gradient_edge": "I and W from an edge",
    "test_stage_backward_input_edge_requires_output_grads": "I from an edge without a gradient",
}


def contract_page(version: str) -> str:
    """Return the text of docs/contract.md for a version of the contract."""
    found = list(checks_of(version).values())
    text = render_own(
        "contract.md.j2",
        version=version,
        checks=found,
        formula=FORMULA,
        profiles=list(PROFILES),
        counts=_counts(found),
        factors=[(name, f"{c:g}", f"{eps:.4g}") for name, c, eps in factors()],
        draws=DRAWS,
        steady=f"{STEADY:.2f}",
        least_draws=math.floor(STEADY**2) + 1,
        mean_floors=[(name, *(f"{floor:g}" for floor in floors)) for name, *floors in mean_floors()],
        seed_suite=list(_seed_suite(found)),
        areas=[_area(area, list(group)) for area, group in groupby(found, key=lambda check: check.area)],
    )
    return text.rstrip() + "\n"


def _counts(checks: Sequence[Check]) -> list[list[Any]]:
    """Count the checks of each area in each profile, which holds those of the smaller ones."""
    areas = sorted({check.area for check in checks})
    counts = Counter(
        (area, profile)
        for check in checks
        for area in (check.area, "all")
        for profile in PROFILES[PROFILES.index(check.profile) :]
    )
    return [[area, *(counts[area, profile] for profile in PROFILES)] for area in (*areas, "all")]


def _seed_suite(checks: Sequence[Check]) -> Iterator[tuple[str, str, str]]:
    """Yield which checks stand for which test of torch's own suite."""
    for test, what in SEED_SUITE.items():
        ids = [check.id for check in checks if check.seed and test in re.split(r"[,\s]+", check.seed)]
        yield f"`{test}`", what, ", ".join(f"`{name}`" for name in ids) or "none yet"
    yield '`devices = ["cpu", "cuda", "hpu", "xpu"]`', "a list of devices", "no list: `--device` takes any"


def _area(area: str, checks: Sequence[Check]) -> tuple[str, str, list[Any]]:
    """Return an area with what its module says of it, and its topics."""
    module = importlib.import_module(f"gradconform.contract.{area}")
    topics = groupby(sorted(checks, key=_topic), key=_topic)
    return area, " ".join((inspect.getdoc(module) or "").split()), [_told(topic, list(of)) for topic, of in topics]


def _topic(check: Check) -> str:
    return check.id.rpartition(".")[0]


def _told(topic: str, checks: Sequence[Check]) -> tuple[str, Iterable[tuple[str, str]], list[Any]]:
    """Return a topic, each reason with what its checks catch once, and a row per check."""
    reasons = dict.fromkeys((check.why, check.catches) for check in checks)
    return topic, reasons, [(f"`{check.id}`", check.level, check.profile, check.requirement) for check in checks]
