"""Random trials: a random stage, a program that is legal under what is claimed, and how both are fed."""

from __future__ import annotations

from typing import Any

from gradconform.adapter import Capabilities
from gradconform.fixtures.random_stages import (
    OPERATIONS,
    Choices,
    IllConditionedError,
    draw_program,
    grow,
    recipe_of,
    stage_of,
)
from gradconform.fixtures.stages.case import StageCase

from .trial import Trial

#: How many stages are drawn until one is found that can be used.
_ATTEMPTS = 20

_LAYOUTS = ("layout:transposed", "layout:strided", "layout:expanded", "zeros")


def draw_stage(choices: Choices, capabilities: Capabilities | None = None, *, max_lines: int = 6) -> StageCase:
    """Return a random stage whose traits are all claimed.

    Raises :class:`~gradconform.fixtures.random_stages.IllConditionedError` where none of twenty is.
    """
    claims = Capabilities() if capabilities is None else capabilities
    for _ in range(_ATTEMPTS):
        recipe = choices.part(lambda source: grow(source, max_lines=max_lines))
        try:
            case = stage_of(recipe)
        except IllConditionedError:
            continue
        if not claims.unclaimed(case.traits):
            return case
    msg = f"none of {_ATTEMPTS} random stages had only traits that are claimed; claim more than {claims!r}"
    raise IllConditionedError(msg)


def draw_grad_pattern(choices: Choices, case: StageCase, capabilities: Capabilities) -> str:
    """Return a pattern of :mod:`gradconform.fixtures.grad_tuples` that is legal for the outputs of ``case``."""
    if not choices.chance(30):
        return "normal"
    recipe = recipe_of(case)
    count = 1 if recipe is None else len(recipe.outputs)
    if capabilities.none_output_grad and count > 1 and choices.chance(60):
        return f"{choices.one_of(('none', 'only'))}:{choices.integer(0, count - 1)}"
    pattern = choices.one_of(_LAYOUTS)
    balanced = recipe is None or any(OPERATIONS[line.operation].balanced for line in recipe.lines)
    return "normal" if balanced and pattern == "layout:expanded" else pattern


def draw_options(choices: Choices, case: StageCase, capabilities: Capabilities) -> dict[str, Any]:
    """Return how a trial on ``case`` is fed and what is watched, as fields of :class:`Trial`."""
    options: dict[str, Any] = {}
    can_lose = capabilities.loss and "nested_output" not in case.traits
    if can_lose and (choices.chance(25) or not capabilities.mid_stage):
        options["loss"] = True
    else:
        options["output_grads"] = draw_grad_pattern(choices, case, capabilities)
    if capabilities.grads_on_param and choices.chance(15):
        options["prior_grads"] = True
    if choices.chance(15):
        options["watch"] = frozenset({"state"})
    elif choices.chance(5):
        options["same_args"] = True
    return options


def draw_trial(
    choices: Choices, capabilities: Capabilities, *, way: str | None = None, most: int = 3, max_lines: int = 6
) -> Trial:
    """Return a random trial that asks only for what is claimed; ``way`` is ``full``, ``split`` or ``mixed``.

    Raises ``ValueError`` where nothing that could be asked is claimed.
    """
    case = draw_stage(choices, capabilities, max_lines=max_lines)
    program = draw_program(choices, capabilities, most=most, way=way)
    return Trial(stages=(case,), program=program, **draw_options(choices, case, capabilities))
