"""What is done with a pipeline: steps of training and evaluation, on which stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Step = Literal["train", "eval", "zero_grad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario: the steps in order, the kind of stages, and how the schedule is made.

    ``alone`` gives each rank a pipeline of its own, in which it has all stages (one, where the schedule takes one).
    """

    name: str
    what: str
    why: str
    steps: tuple[Step, ...] = ("train", "train")
    stages: Literal["plain", "frozen-first", "tied", "gated"] = "plain"
    scale_grads: bool = False
    alone: bool = False

    def requirement(self, schedule: str) -> str:
        """Return the requirement sentence for a schedule, e.g. ``1F1B (2 ranks, …)``."""
        plain = "what one plain backward of the whole model gives"
        return f"A pipeline in the order of {schedule} MUST give {plain} {self.what}."


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="two-steps",
        what="in two steps whose gradients add up",
        why="The second step meets the gradients and caches that the first one left.",
    ),
    Scenario(
        name="zero-grad",
        what="in two steps with zero_grad between them",
        why="zero_grad sets gradients to None, so the second step starts as the first one did.",
        steps=("train", "zero_grad", "train"),
    ),
    Scenario(
        name="eval-then-train",
        what="in a step after an evaluation",
        why="An evaluation leaves outputs and no graphs; what it leaves must not reach the backward.",
        steps=("eval", "train"),
    ),
    Scenario(
        name="scaled",
        what="where gradients are divided by the number of micro-batches",
        why="Scaling happens once, after the last backward of a step.",
        steps=("train",),
        scale_grads=True,
    ),
    Scenario(
        name="frozen-first",
        what="with a frozen first stage",
        why="Its output needs no gradient, so nothing may be asked of it and everything of the stage behind.",
        stages="frozen-first",
    ),
    Scenario(
        name="tied",
        what="with a weight that every stage uses twice",
        why="Both uses add to one gradient, in B, or in I and W.",
        stages="tied",
    ),
    Scenario(
        name="keyword-arguments",
        what="with a keyword argument on every stage",
        why="Keyword arguments stand behind the positional ones among the inputs of a backward.",
        stages="gated",
    ),
    Scenario(
        name="single-rank",
        what="where one rank has all stages",
        why="A first stage that is also the last has a loss and no input gradient to hand on.",
        alone=True,
    ),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
