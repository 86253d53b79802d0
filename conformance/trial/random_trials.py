"""Random trials: a random stage, a program that is valid for the claims, and the inputs of both."""

from __future__ import annotations

from collections.abc import Mapping
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

#: How many stages are drawn until a usable one is found.
_ATTEMPTS = 20

_LAYOUTS = ("layout:transposed", "layout:strided", "layout:expanded", "zeros")

#: Arguments that the caller neither receives into nor takes from an earlier graph: parameters, or one tensor twice.
_NOT_RECEIVED = frozenset({"parameter_input", "duplicate_input"})


def draw_stage(choices: Choices, capabilities: Capabilities | None = None, *, max_lines: int = 6) -> StageCase:
    """Return a random stage whose traits are all claimed.

    Raises :class:`~gradconform.fixtures.random_stages.IllConditionedError` if none of twenty is usable.
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
    msg = f"{_ATTEMPTS} random stages all had an unclaimed trait; claim more than {claims!r}"
    raise IllConditionedError(msg)


def draw_grad_pattern(choices: Choices, case: StageCase, capabilities: Capabilities) -> str:
    """Return a pattern of :mod:`gradconform.fixtures.grad_tuples` that is valid for the outputs of ``case``."""
    if not choices.chance(30):
        return "normal"
    recipe = recipe_of(case)
    count = 1 if recipe is None else len(recipe.outputs)
    if capabilities.none_output_grad and count > 1 and choices.chance(60):
        return f"{choices.one_of(('none', 'only'))}:{choices.integer(0, count - 1)}"
    pattern = choices.one_of(_LAYOUTS)
    balanced = recipe is None or any(OPERATIONS[line.operation].balanced for line in recipe.lines)
    return "normal" if balanced and pattern == "layout:expanded" else pattern


def draw_options(
    choices: Choices, case: StageCase, capabilities: Capabilities, *, passed: bool = True
) -> dict[str, Any]:
    """Return the inputs and watches of a trial on ``case``, as fields of :class:`Trial`.

    ``passed``: also draw which tensors and lists the caller passes.
    """
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
    return options | _draw_caller(choices, case, capabilities, options) if passed else options


def _draw_caller(
    choices: Choices, case: StageCase, capabilities: Capabilities, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return which tensors and lists the caller passes, as fields of :class:`Trial` that go with ``options``."""
    fields: dict[str, Any] = {}
    if options.get("output_grads") == "layout:strided" and choices.chance(50):
        fields["output_grads"] = "layout:offset"
    own = not (options.get("same_args") or case.traits & _NOT_RECEIVED)
    sent = "output_grads" in options and options["output_grads"] != "zeros"
    if choices.chance(20):
        refilled = sent and "watch" not in options  # a stage of views returns the memory of an output gradient
        kinds = ["inputs"] * own + ["grads"] * refilled + ["once"] * sent
        kinds += ["twice"] * (options.get("output_grads") == "normal")
        fields |= {"received": choices.one_of(kinds)} if kinds else {}
    elif sent and choices.chance(10):
        fields["tracked_grads"] = True
    if own and fields.get("received") != "inputs" and choices.chance(10):
        fields["upstream"] = True
    if capabilities.lists and choices.chance(10):
        fields["kept_lists"] = True
    if capabilities.lists and capabilities.split and choices.chance(10):
        fields["weights"] = choices.one_of(("reversed", "twice", *["parts"] * capabilities.param_groups))
    return fields


def trial_of(case: StageCase, program: str, options: Mapping[str, Any], capabilities: Capabilities) -> Trial:
    """Return the trial of a drawn program and drawn options, without options that do not fit the program.

    If an earlier graph continues at the end of a step, the program ends one.
    """
    fields = dict(options)
    if "lose" in program:  # the lost forward has other values
        fields.pop("same_args", None)
    if "zero_fill" in program and not capabilities.grads_in_param_grad:
        fields.pop("watch", None)  # plain autograd clears memory shared with a .grad, which this target leaves
    if fields.get("upstream") and not program.endswith("finish"):
        program = f"{program} finish"
    return Trial(stages=(case,), program=program, **fields)


def draw_trial(  # noqa: PLR0913 (each limits the draw)
    choices: Choices,
    capabilities: Capabilities,
    *,
    way: str | None = None,
    most: int = 3,
    max_lines: int = 6,
    passed: bool = True,
) -> Trial:
    """Return a random trial that requires only claimed capabilities; ``way`` is ``full``, ``split`` or ``mixed``.

    ``passed``: also draw which tensors and lists the caller passes, and forwards that get no backward. Raises
    ``ValueError`` if none of the possible actions is claimed.
    """
    case = draw_stage(choices, capabilities, max_lines=max_lines)
    program = draw_program(choices, capabilities, most=most, way=way, forwards=passed)
    options = draw_options(choices, case, capabilities, passed=passed)
    return trial_of(case, program, options, capabilities)
