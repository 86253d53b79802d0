"""What the areas share: which stages a family goes over, and how a trial per stage is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.programs import split_all_forwards_first
from gradconform.fixtures.stages import ZOO
from gradconform.fixtures.stages.case import StageCase
from gradconform.trial import Trial

#: The zoo as it stood when contract 1.0 was frozen: stages that users add do not change the contract.
STAGES: tuple[StageCase, ...] = tuple(ZOO.values())

#: Stages whose outputs can take part in a loss; the others are for gradient-driven trials.
LOSS_STAGES = tuple(case for case in STAGES if not case.traits & {"nested_output", "complex"})


#: The program of a trial whose result could depend on memory addresses or set order: thirty graphs, all alive at once.
BUILDS = split_all_forwards_first(30)


def _seed_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))


#: The model of torch's own suite, at its own size.
SEED_SIZE = (StageCase("mlp-512", "an MLP of width 512 on a batch of 256", _seed_mlp, (Normal((256, 512)),)),)


def over(stages: Iterable[StageCase], program: str, **options: Any) -> dict[str, Trial]:
    """Return one trial per stage, by the stage's name."""
    return {case.name: Trial(stages=(case,), program=program, **options) for case in stages}


def of(name: str, program: str, **options: Any) -> Trial:
    """Return a trial of one stage of the zoo."""
    return Trial(stages=(ZOO[name],), program=program, **options)


def of_two(first: str, second: str, program: str, **options: Any) -> Trial:
    """Return a trial of two stages, both alive: ``1F0`` is an action of the second."""
    return Trial(stages=(ZOO[first], ZOO[second]), program=program, **options)
