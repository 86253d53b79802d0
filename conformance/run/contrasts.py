"""Plain trials that a mistake must agree with: a mistake made in every action is made in these as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities, UnsupportedError
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.trial.trial import Trial


class _Branching(nn.Module):
    """Three arguments and three outputs, a layer that is used twice, and a parameter of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(5, 4), nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.tanh(self.first(x))
        return self.shared(hidden + y), self.shared(torch.sin(hidden) * z), hidden * y * self.gain


_TRAITS = frozenset({"multi_input", "multi_output", "shared_params"})
_STAGES = (
    StageCase(
        "contrast-linear", "two Linears", lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), (Normal((7, 5)),)
    ),
    StageCase(
        "contrast-branching",
        "three arguments, three outputs and a layer that is used twice",
        _Branching,
        (Normal((7, 5)), Normal((7, 4)), Normal((7, 4))),
        _TRAITS,
    ),
)
_PROGRAMS = ("F0 I0 W0 F1 I1 W1", "F0 F1 I0 I1 W1 W0", "F0 B0 F1 B1", "F0 F1 I0 B1 W0")


def contrasts(claims: Capabilities, evidence_of: Callable[[Trial], Evidence]) -> Iterator[Evidence]:
    """Yield the evidence of the plain trials that require only claimed capabilities, except refused ones."""
    for stage in _STAGES:
        for program in _PROGRAMS:
            trial = Trial(stages=(stage,), program=program)
            if not claims.unclaimed(trial.needs):
                try:
                    yield evidence_of(trial)
                except UnsupportedError:
                    continue
