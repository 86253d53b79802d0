"""The state machine: its rules are what a pipeline may ask of a stage next, its invariant is the judge.

The rules write a program; at the end the one driver runs it, and the judge reads what was seen after every action.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gradconform.adapter import Capabilities
from gradconform.fixtures import strategies
from gradconform.fixtures.random_stages import IllConditionedError, Order, recipe_of, stage_of
from gradconform.fixtures.stages.case import StageCase
from gradconform.fuzz.hunt import Hunt
from gradconform.random_trial import draw_options
from gradconform.trial import Trial

_PICKS = st.integers(0, 7)

#: How many micro-batches a program has at most.
MICROBATCHES = 8


class StageMachine(RuleBasedStateMachine):
    """One stage, and one program in the making."""

    hunt: ClassVar[Hunt]
    capabilities: ClassVar[Capabilities]

    case: StageCase
    order: Order
    options: dict[str, Any]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Draw the stage, what the program is made of, and how the stage is fed."""
        self.case = data.draw(strategies.stages(self.capabilities))
        choices = strategies.DrawnChoices(data.draw)
        self.options = draw_options(choices, self.case, self.capabilities)
        self.order = Order(self.capabilities, choices.one_of(Order.ways(self.capabilities)), most=MICROBATCHES)
        self.hooked = False
        self.frozen: list[int] = []

    def _legal(self, kind: str) -> list[str]:
        order = self.order
        found = {"F": order.forwards, "W": order.weights, "drop": order.drops, "overwrite": order.overwrites}
        return found[kind]() if kind in found else order.backwards(kind)

    def _take(self, kind: str, pick: int) -> None:
        legal = self._legal(kind)
        self.order.take(legal[pick % len(legal)])

    @precondition(lambda self: self._legal("F"))
    @rule()
    def forward(self) -> None:
        """Run the next micro-batch forward."""
        self._take("F", 0)

    @precondition(lambda self: self._legal("B"))
    @rule(pick=_PICKS)
    def backward(self, pick: int) -> None:
        """Run B of a micro-batch that has run forward."""
        self._take("B", pick)

    @precondition(lambda self: self._legal("I"))
    @rule(pick=_PICKS)
    def backward_input(self, pick: int) -> None:
        """Run I of a micro-batch that has run forward."""
        self._take("I", pick)

    @precondition(lambda self: self._legal("W"))
    @rule(pick=_PICKS)
    def backward_weight(self, pick: int) -> None:
        """Run W of a micro-batch that had its I."""
        self._take("W", pick)

    @precondition(lambda self: self.order.zeros())
    @rule(pick=_PICKS)
    def zero_grad(self, pick: int) -> None:
        """Clear the gradients, by None or by zeros."""
        self.order.take(self.order.zeros()[pick % 2])

    @precondition(lambda self: self._legal("drop"))
    @rule(pick=_PICKS)
    def drop_outputs(self, pick: int) -> None:
        """Let go of the outputs and arguments of a micro-batch."""
        self._take("drop", pick)

    @precondition(lambda self: self._legal("overwrite") and not self.options.keys() & {"watch", "same_args"})
    @rule(pick=_PICKS)
    def overwrite_returned(self, pick: int) -> None:
        """Write over the gradients that were returned for a micro-batch."""
        self._take("overwrite", pick)

    @rule()
    def hook_or_unhook(self) -> None:
        """Put hooks on every parameter, or take them away again."""
        self.order.take("unhook" if self.hooked else "hook")
        self.hooked = not self.hooked

    @precondition(lambda self: self.order.idle and self.capabilities.frozen_params and not self.frozen)
    @rule(pick=_PICKS)
    def freeze(self, pick: int) -> None:
        """Freeze a parameter between two steps, where that changes nothing else about the stage."""
        freezable = _freezable(self.case)
        if freezable:
            self.frozen.append(freezable[pick % len(freezable)])
            self.order.between_steps(f"freeze{self.frozen[0]}")

    @precondition(lambda self: self.order.idle and self.frozen)
    @rule()
    def unfreeze(self) -> None:
        """Let a frozen parameter be trained again."""
        self.order.between_steps(f"unfreeze{self.frozen.pop()}")

    def teardown(self) -> None:
        """Take what is pending, run the program, and judge what was seen after every action."""
        if not hasattr(self, "order"):
            return
        self.order.finish()
        if self.order.begun:
            self.hunt.attempt(Trial(stages=(self.case,), program=self.order.program, **self.options))


def _freezable(case: StageCase) -> list[int]:
    """Return the parameters, by number, that can be frozen without another trait than a frozen parameter."""
    recipe = recipe_of(case)
    found: list[int] = []
    for index, weight in enumerate(recipe.weights if recipe else ()):
        if recipe is None or weight.frozen:
            continue
        weights = [replace(w, frozen=True) if w is weight else w for w in recipe.weights]
        try:
            other = stage_of(replace(recipe, weights=tuple(weights)))
        except IllConditionedError:
            continue
        if other.traits - {"frozen_params"} == case.traits - {"frozen_params"}:
            found.append(index)
    return found
