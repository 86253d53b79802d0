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

from gradconform.contract import checks_of
from gradconform.contract.cases import DRAWS
from gradconform.contract.check import Check, lower_first
from gradconform.contract.explanations import FORMULA, LETTERS, factors, mean_floors
from gradconform.contract.space.reset import non_default_values
from gradconform.fixtures.planned_stages import plan_of
from gradconform.fixtures.random_stages import recipe_of
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.mean_rule import STEADY
from gradconform.user_input.values import PROFILES

from .page.rendering import render_own

#: The tests of torch's own suite, in its order, and the code that each one runs.
SEED_SUITE = {
    "test_stage_backward": "one full backward from a loss; input and parameter gradients",
    "test_stage_backward_input": "I without W: the gradients of the inputs, and `.grad` of the inputs",
    "test_stage_backward_weight": "I, then W with `retain_graph`; parameter gradients",
    "test_stage_backward_weight_multiple_iters": "ten iterations of I and W",
    "test_stage_backward_weight_grad_validation": (
        "gradient tuples of one, two and more entries, some of them None; torch only asserts that nothing raises, "
        "and these checks compare the values"
    ),
    "test_stage_backward_input_ignores_non_tensor_inputs": "I with an argument that is no tensor",
    "test_stage_backward_input_with_view_output": "I and W of a stage whose output is a view",
    "test_stage_backward_weight_custom_autograd_function": "W of a custom Function whose output is freed",
    "test_stage_backward_multi_output_intermediate": "I and W through a node with several outputs",
    "test_stage_backward_weight_shared_weights": "I and W of a weight that is used twice",
    "test_stage_backward_from_gradient_edge": "B from the edge of a freed output",
    "test_stage_backward_mixed_edge_and_tensor_outputs": "B from an edge, a tensor and None",
    "test_stage_backward_edge_keeps_python_autograd_function_alive": "B from the edge of a custom Function",
    "test_stage_backward_input_from_gradient_edge": "I and W from an edge",
    "test_stage_backward_input_edge_requires_output_grads": "I from an edge without a gradient",
}

#: The column of each placeholder of a requirement. On the page, the column's name in capitals replaces it.
_COLUMNS = {
    "stage": "stage",
    "program": "program",
    "case": "case",
    "grads": "output gradients",
    "modes": "settings",
    "phrase": "values",
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
        overview=list(_overview(found)),
        core=", ".join(f"`{check.id}`" for check in found if check.core),
        letters=list(LETTERS.items()),
        stages=_stages(found),
        factors=[(name, f"{c:g}", f"{eps:.4g}") for name, c, eps in factors()],
        draws=DRAWS,
        steady=f"{STEADY:.2f}",
        least_draws=math.floor(STEADY**2) + 1,
        mean_floors=[(name, *(f"{floor:g}" for floor in floors)) for name, *floors in mean_floors()],
        seed_suite=list(_seed_suite(found)),
        areas=[_area(area, list(group)) for area, group in groupby(found, key=lambda check: check.area)],
    )
    return text.rstrip() + "\n"


def _overview(checks: Sequence[Check]) -> Iterator[list[Any]]:
    """Yield per area its link, its subject, and its checks per profile, which contains those of the smaller ones."""
    counts = Counter(
        (area, profile)
        for check in checks
        for area in (check.area, "all")
        for profile in PROFILES[PROFILES.index(check.profile) :]
    )
    for area in sorted({check.area for check in checks}):
        yield [f"[{area}](#{area})", _subject(area), *(counts[area, profile] for profile in PROFILES)]
    yield ["all", "", *(counts["all", profile] for profile in PROFILES)]


def _subject(area: str) -> str:
    """Return the first sentence of an area's introduction, without the area's name and the full stop."""
    first, _, _ = _introduction(area).partition(". ")
    return first.partition(": ")[2].rstrip(".")


def _introduction(area: str) -> str:
    """Return the docstring of an area's module as one line."""
    return " ".join((inspect.getdoc(importlib.import_module(f"gradconform.contract.{area}")) or "").split())


def _seed_suite(checks: Sequence[Check]) -> Iterator[tuple[str, str, str]]:
    """Yield each test of torch's own suite, the code that it runs, and the checks that cover it."""
    for test, what in SEED_SUITE.items():
        ids = [check.id for check in checks if check.seed and test in re.split(r"[,\s]+", check.seed)]
        yield f"`{test}`", what, ", ".join(f"`{name}`" for name in ids) or "none"
    yield '`devices = ["cpu", "cuda", "hpu", "xpu"]`', "a list of devices", "no list: `--device` takes any"


def _stages(checks: Sequence[Check]) -> list[tuple[str, str]]:
    """Return each specially named stage and its non_default_values feature, sorted by name."""
    cases = {case.name: case for check in checks for trial in check.trials for case in trial.stages}
    named = (case for case in cases.values() if recipe_of(case) is None and plan_of(case) is None)
    return sorted((f"`{case.name}`", lower_first(case.special)) for case in named)


def _area(area: str, checks: Sequence[Check]) -> tuple[str, str, list[Any]]:
    """Return an area, the introduction from its module, and its topics."""
    topics = groupby(sorted(checks, key=_topic), key=_topic)
    return area, _introduction(area), [(topic, list(_families(list(of)))) for topic, of in topics]


def _topic(check: Check) -> str:
    return check.id.rpartition(".")[0]


def _families(checks: Sequence[Check]) -> Iterator[tuple[str, str, str, list[str], list[list[str]]]]:
    """Yield per requirement of a topic: the sentence, its purpose, the mistakes it catches, and its table of checks."""
    families: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        families.setdefault((check.template, check.why, check.catches), []).append(check)
    for (template, why, catches), some in families.items():
        names = list(some[0].filled)
        sentence = template.format(**{name: _placeholder(name) for name in names})
        head = ["id", "level", "profile", *(_COLUMNS[name] for name in names)]
        yield sentence, why, catches, head, [_row(check, names) for check in some]


def _placeholder(name: str) -> str:
    """Return the text of a placeholder on the page: the column's name in capitals, which refers to the cell below."""
    before = "stage " if name == "stage" else ""
    return f"{before}*{_COLUMNS[name].upper()}*"


def _row(check: Check, names: Iterable[str]) -> list[str]:
    return [f"`{check.id}`", check.level, check.profile, *(_cell(check, name) for name in names)]


def _cell(check: Check, name: str) -> str:
    """Return a placeholder's text for one check; stages and row values are explained once, elsewhere."""
    if name == "stage":
        return _stage_cell(check.trials[0].stages[0])
    if name == "phrase":
        return ", ".join((non_default_values(check.id) or {}).values()) or "default values only"
    return check.filled[name]


def _stage_cell(case: StageCase) -> str:
    recipe = recipe_of(case)
    return f"`{case.name}`" if recipe is None else f"`{'; '.join(recipe.text.splitlines())}`"
