"""Values that the areas share: the stages of a family of checks, and helpers to write a trial per stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.programs import split_all_forwards_first
from gradconform.fixtures.schedules import Schedule
from gradconform.fixtures.stages import ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.chains import chain_of
from gradconform.trial.trial import Trial

#: The stages of contract 1.0 by name: a stage that is added to the zoo joins no version that does not name it.
STAGES: tuple[StageCase, ...] = tuple(ZOO[name] for name in (
    "two-inputs", "fixed-input-first", "fixed-input-last", "fixed-inputs", "sum-of-inputs", "unused-input",
    "nontensor-inputs", "parameter-input", "duplicate-input", "empty-batch", "batch-of-one", "transposed-input",
    "strided-input", "transposed-use", "transformer-layer", "fused-qkv", "attention-mask", "complex",
    "complex-parameter", "custom-linear", "custom-two-outputs", "custom-unused-output", "custom-none-for-input",
    "custom-none-for-weight", "custom-integer-output", "in-place-activation", "in-place-slices", "dropout",
    "checkpoint", "checkpoint-dropout", "checkpoint-batch-norm", "activation-hook", "detached-branch", "linear-hook",
    "embedding", "embedding-sparse", "embedding-tied-decoder", "integer-input", "mlp", "mlp-no-bias", "linear-3d",
    "residual", "deep-chain", "square-weight", "frozen-layer", "frozen-weight", "all-frozen",
    "unused-parameter", "no-parameters", "conv2d", "conv2d-channels-last", "layer-norm", "group-norm",
    "batch-norm", "chunk", "split-uneven", "unbind-dropped", "max-indices", "topk-values", "two-outputs",
    "three-outputs", "inner-output", "mask-output", "detached-output", "parameter-only-output",
    "parameter-only-outputs", "output-is-parameter", "output-is-weight", "output-is-input", "same-output-twice",
    "scalar-output", "penalty-output", "weight-norm", "bare-bias", "added-parameter", "scalar-parameter",
    "sliced-weight", "chunked-weight", "gathered-parameter", "reverse-registration", "two-bare-biases",
    "summed-gain", "merged-paths", "rnn", "gru", "lstm", "output-view", "output-transposed", "output-slice",
    "output-chunks", "output-of-input-view", "dict-output", "nested-output", "list-output", "tuple-of-one",
    "none-in-output", "output-unbound", "five-outputs", "tied-parallel", "tied-adjacent", "tied-apart",
    "tied-apart-reordered", "tied-transposed", "looped-block", "derived-weight-twice",
))  # fmt: skip

#: The stages that contract 1.1 adds to them.
LATER_STAGES: tuple[StageCase, ...] = tuple(
    ZOO[name] for name in ("complex-no-bias", "complex-views", "hidden-states", "one-address", "residual-linear")
)

#: The stages that contract 1.3 adds to them.
NEWEST_STAGES: tuple[StageCase, ...] = tuple(ZOO[name] for name in ("frozen-norm", "layer-arguments", "rows-in-place"))

#: Stages that profile standard leaves out from contract 1.3 on: others have the same kinds of layers.
RARER_STAGES = tuple(case for case in STAGES if case.name in {"group-norm", "mlp-no-bias", "split-uneven"})
USUAL_STAGES = tuple(case for case in STAGES if case not in RARER_STAGES)

#: Stages that support only a whole backward: for B, and for I to compute or refuse.
REENTRANT = (ZOO["checkpoint-reentrant"],)

#: Stages whose outputs can take part in a loss; the others are for gradient-driven trials.
LOSS_STAGES = tuple(case for case in STAGES if not case.traits & {"nested_output", "complex"})


#: Stages whose loss contract 1.1 no longer has: a loss starts them as a gradient does, and rows have losses.
_OLD_LOSSES_OF_SPLIT = frozenset({
    "activation-hook", "added-parameter", "checkpoint-batch-norm", "checkpoint-dropout", "chunked-weight",
    "conv2d-channels-last", "custom-linear", "deep-chain", "frozen-weight", "fused-qkv", "gathered-parameter",
    "in-place-activation", "in-place-slices", "max-indices", "mlp-no-bias", "no-parameters", "reverse-registration",
    "scalar-parameter", "sliced-weight", "split-uneven", "strided-input", "sum-of-inputs", "transposed-input",
    "transposed-use", "unbind-dropped", "unused-parameter", "weight-norm",
    "attention-mask", "batch-of-one", "conv2d", "custom-integer-output", "custom-none-for-input", "group-norm",
    "layer-norm", "linear-3d", "list-output", "output-chunks", "square-weight", "three-outputs", "topk-values",
    "custom-two-outputs", "embedding-tied-decoder", "fixed-inputs", "merged-paths", "output-transposed", "summed-gain",
    "tied-apart-reordered", "two-bare-biases", "custom-unused-output", "linear-hook",
})  # fmt: skip
_KEPT_IN_FULL = {
    "conv2d", "frozen-weight", "layer-norm", "linear-3d", "three-outputs",
}  # fmt: skip
_OLD_LOSSES_OF_FULL = _OLD_LOSSES_OF_SPLIT - _KEPT_IN_FULL | {
    "bare-bias", "custom-none-for-weight", "custom-unused-output", "derived-weight-twice", "detached-branch",
    "duplicate-input", "embedding-sparse", "empty-batch", "fixed-input-first", "fixed-input-last", "inner-output",
    "integer-input", "linear-hook", "looped-block", "nontensor-inputs", "output-of-input-view", "output-slice",
    "output-unbound", "same-output-twice", "tied-adjacent", "tied-parallel", "tied-transposed",
}  # fmt: skip


def _parted(old: frozenset[str]) -> tuple[tuple[StageCase, ...], tuple[StageCase, ...]]:
    """Return the stages of losses that every version has, and those that contract 1.0 alone has."""
    return tuple(one for one in LOSS_STAGES if one.name not in old), tuple(c for c in LOSS_STAGES if c.name in old)


FULL_LOSSES, OLD_FULL_LOSSES = _parted(_OLD_LOSSES_OF_FULL)
SPLIT_LOSSES, OLD_SPLIT_LOSSES = _parted(_OLD_LOSSES_OF_SPLIT)


#: The program of trials whose result could depend on memory addresses or set order: thirty live graphs.
BUILDS = split_all_forwards_first(30)


#: The number of draws of a mean: enough that one direction in all of them is distinguished from chance.
DRAWS = 44


def _seed_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))


#: The model of torch's own suite, at its original size.
SEED_SIZE = (StageCase("mlp-512", "an MLP of width 512 on a batch of 256", _seed_mlp, (Normal((256, 512)),)),)


def on_chain(schedule: Schedule, stages: tuple[StageCase, ...] = ()) -> Trial:
    """Return the trial of a pipeline schedule, on a chain of plain stages unless other stages are given."""
    return Trial(stages=stages or chain_of(schedule.stages), program=schedule.program, chain=True, loss=True)


def over(stages: Iterable[StageCase | str], program: str, **options: Any) -> dict[str, Trial]:
    """Return one trial per stage, by the stage's name; a string names a stage of the zoo."""
    cases = [ZOO[stage] if isinstance(stage, str) else stage for stage in stages]
    return {case.name: Trial(stages=(case,), program=program, **options) for case in cases}


def of(name: str, program: str, **options: Any) -> Trial:
    """Return a trial of one stage of the zoo."""
    return Trial(stages=(ZOO[name],), program=program, **options)


def draws(case: Trial) -> tuple[Trial, ...]:
    """Return one trial per draw of all its random values: enough that a mean over them separates bias from rounding."""
    return tuple(replace(case, draw=number) for number in range(DRAWS))


def of_two(first: str, second: str, program: str, **options: Any) -> Trial:
    """Return a trial of two stages, both alive: ``1F0`` is an action of the second."""
    return Trial(stages=(ZOO[first], ZOO[second]), program=program, **options)


def ways(names: str | Iterable[str], *, full: str = "", split: str = "", **options: Any) -> dict[str, Trial]:
    """Return a trial per stage of the zoo and given program, by the stage's name and way (full or split).

    For a single stage name, the key is the way alone.
    """
    stages = {"": names} if isinstance(names, str) else {f"{name}-": name for name in names}
    return {
        f"{prefix}{way}": of(name, program, **options)
        for prefix, name in stages.items()
        for way, program in (("full", full), ("split", split))
        if program
    }
