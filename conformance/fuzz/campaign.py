"""The campaign: alternating rounds of random trials and of the state machine, until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gradconform.adapter import Capabilities
from gradconform.fixtures import strategies
from gradconform.fixtures.random_stages import IllConditionedError, Order, recipe_of, stage_of
from gradconform.fixtures.stages.case import StageCase
from gradconform.run.runner import Runner
from gradconform.trial.random_trials import draw_options, trial_of

from .hunt import Defect, DefectError, Hunt

_PICKS = st.integers(0, 7)

#: How many micro-batches a program has at most.
MICROBATCHES = 8


class StageMachine(RuleBasedStateMachine):
    """One stage, and one program under construction."""

    hunt: ClassVar[Hunt]
    capabilities: ClassVar[Capabilities]

    case: StageCase
    order: Order
    options: dict[str, Any]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Draw the stage, the form of the program, and the inputs."""
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
        """Free the outputs and arguments of a micro-batch."""
        self._take("drop", pick)

    @precondition(lambda self: self._legal("overwrite") and not self.options.keys() & {"watch", "same_args"})
    @rule(pick=_PICKS)
    def overwrite_returned(self, pick: int) -> None:
        """Overwrite the gradients that were returned for a micro-batch."""
        self._take("overwrite", pick)

    @precondition(lambda self: self.order.losses() and "same_args" not in self.options)
    @rule()
    def lose_a_forward(self) -> None:
        """Run a forward without a backward: its micro-batch number is used again."""
        self.order.take(self.order.losses()[0])

    @precondition(lambda self: self.order.evaluations())
    @rule(pick=_PICKS)
    def evaluate(self, pick: int) -> None:
        """Evaluate the stage while a micro-batch is in flight."""
        legal = self.order.evaluations()
        self.order.take(legal[pick % len(legal)])

    @rule()
    def hook_or_unhook(self) -> None:
        """Set hooks on every parameter, or remove them."""
        self.order.take("unhook" if self.hooked else "hook")
        self.hooked = not self.hooked

    @precondition(lambda self: self.order.nothing_in_flight and self.capabilities.frozen_params and not self.frozen)
    @rule(pick=_PICKS)
    def freeze(self, pick: int) -> None:
        """Freeze a parameter between two steps, if that changes nothing else about the stage."""
        freezable = _freezable(self.case)
        if freezable:
            self.frozen.append(freezable[pick % len(freezable)])
            self.order.between_steps(f"freeze{self.frozen[0]}")

    @precondition(lambda self: self.order.nothing_in_flight and self.frozen)
    @rule()
    def unfreeze(self) -> None:
        """Unfreeze a parameter."""
        self.order.between_steps(f"unfreeze{self.frozen.pop()}")

    def teardown(self) -> None:
        """Append the pending actions, run the program, and judge the observation."""
        if not hasattr(self, "order"):
            return
        self.order.finish()
        if self.order.begun:
            self.hunt.attempt(trial_of(self.case, self.order.program, self.options, self.capabilities))


def _freezable(case: StageCase) -> list[int]:
    """Return the numbers of parameters whose freezing adds no other trait."""
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


#: Examples of one round, which ends with the first defect it finds: that is known then, and the next passes it by.
_ROUND = 100

#: How many actions the state machine takes.
_STEPS = 24


@dataclass(slots=True)
class Campaign:
    """The result of a campaign: the number of trials and failures, the distinct defects, and the duration.

    ``unjudged`` are the trials that plain autograd does not support on the device and dtype.
    """

    trials: int = 0
    failing: int = 0
    examples: int = 0
    unjudged: int = 0
    seconds: float = 0.0
    out_of_time: bool = False
    defects: list[Defect] = field(default_factory=list)


def run_campaign(  # noqa: PLR0913 (these are the options a user has)
    runner: Runner,
    *,
    max_examples: int,
    time_budget: float,
    seed: int,
    most_defects: int | None = None,
    on_round: Callable[[Campaign], None] = lambda _: None,
) -> Campaign:
    """Try ``max_examples`` random examples, or as many as ``time_budget`` seconds allow, and shrink failures.

    Half of them are plain random trials, half programs of the state machine. Within the time budget, the same seed
    tries the same examples on one version of hypothesis. Trials while shrinking count as trials, not as examples. It
    ends after ``most_defects`` defects. ``on_round`` is called after every round.
    """
    started = time.monotonic()
    hunt = Hunt(runner, deadline=started + time_budget)
    campaign = Campaign()
    number = 0
    while campaign.examples < max_examples and not hunt.over and len(hunt.defects) != most_defects:
        count = min(_ROUND, max_examples - hunt.examples)
        before = hunt.examples
        _round(hunt, count, seed + number, machine=bool(number % 2))
        number += 1
        # What hypothesis leaves out (it knows when a space is exhausted) counts as tried, so that this ends.
        hunt.examples = max(hunt.examples, before + (1 if hunt.reduce_found() is not None else count))
        campaign.examples, campaign.defects = hunt.examples, list(hunt.defects)
        campaign.trials, campaign.failing, campaign.unjudged = hunt.trials, hunt.failing, hunt.unjudged
        campaign.seconds, campaign.out_of_time = time.monotonic() - started, hunt.over
        on_round(campaign)
    return campaign


def _round(hunt: Hunt, count: int, seed: int, *, machine: bool) -> None:
    """Let hypothesis try ``count`` examples; errors on defects are ignored, because the hunt has stored these."""
    chosen = settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        stateful_step_count=_STEPS,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    try:
        _machine(hunt, chosen, seed) if machine else _trials(hunt, chosen, seed)
    except DefectError:
        return
    except Exception as error:
        if not _of_defects(error):
            raise


def _of_defects(error: BaseException) -> bool:
    """Return whether an exception, or all of a group, are defects; a time limit makes them flaky."""
    parts = getattr(error, "exceptions", None)
    if isinstance(error, hypothesis.errors.Flaky):
        return True
    return isinstance(error, DefectError) or (parts is not None and all(map(_of_defects, parts)))


def _trials(hunt: Hunt, chosen: settings, seed: int) -> None:
    @hypothesis.seed(seed)
    @chosen
    @given(strategies.trials(hunt.runner.claims))
    def attempt(trial: object) -> None:
        hunt.attempt(trial)  # type: ignore[arg-type]  # given hands over what the strategy draws

    attempt()


def _machine(hunt: Hunt, chosen: settings, seed: int) -> None:
    machine = type("Machine", (StageMachine,), {"hunt": hunt, "capabilities": hunt.runner.claims})
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=chosen)
