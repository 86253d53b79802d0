"""The campaign: rounds of random trials and of the state machine, in turn, until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.stateful import run_state_machine_as_test

from gradconform.fixtures import strategies
from gradconform.fuzz.defect import Defect
from gradconform.fuzz.hunt import DefectError, Hunt
from gradconform.fuzz.machine import StageMachine
from gradconform.run import Runner

#: Examples of one round, which ends with the first defect it finds: that is known then, and the next passes it by.
_ROUND = 100

#: How many actions the state machine takes.
_STEPS = 24


@dataclass(slots=True)
class Campaign:
    """What a campaign did: how many trials it tried, how many failed, the distinct defects, and how long it took.

    ``unjudged`` are the trials that plain autograd itself cannot do on the device and dtype.
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
    """Try ``max_examples`` random examples, or as many as ``time_budget`` seconds allow, and shrink what fails.

    Half of them are plain random trials, half programs of the state machine. The same seed tries the same examples, on
    one version of hypothesis, as long as the time does not run out. Trials of the shrinking are counted as trials, not
    as examples. ``most_defects`` ends it after so many. ``on_round`` is called after every round.
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
        hunt.examples = max(hunt.examples, before + (1 if hunt.settle() is not None else count))
        campaign.examples, campaign.defects = hunt.examples, list(hunt.defects)
        campaign.trials, campaign.failing, campaign.unjudged = hunt.trials, hunt.failing, hunt.unjudged
        campaign.seconds, campaign.out_of_time = time.monotonic() - started, hunt.over
        on_round(campaign)
    return campaign


def _round(hunt: Hunt, count: int, seed: int, *, machine: bool) -> None:
    """Let hypothesis try ``count`` examples; what it raises of a defect the hunt has written down."""
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
    """Tell whether an exception is one, or a group of several, of defects; time that runs out makes them flaky."""
    parts = getattr(error, "exceptions", None)
    if isinstance(error, hypothesis.errors.Flaky):
        return True
    return isinstance(error, DefectError) or (parts is not None and all(map(_of_defects, parts)))


def _trials(hunt: Hunt, chosen: settings, seed: int) -> None:
    @hypothesis.seed(seed)
    @chosen
    @given(strategies.trials(hunt.runner.target.capabilities))
    def attempt(trial: object) -> None:
        hunt.attempt(trial)  # type: ignore[arg-type]  # given hands over what the strategy draws

    attempt()


def _machine(hunt: Hunt, chosen: settings, seed: int) -> None:
    machine = type("Machine", (StageMachine,), {"hunt": hunt, "capabilities": hunt.runner.target.capabilities})
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=chosen)
