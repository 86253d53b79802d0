"""Properties: random stages and programs, the same in every run, judged by every rule that holds for all stages."""

from __future__ import annotations

from collections.abc import Iterable

from gradconform.adapter import Capabilities
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge import all_requirements
from gradconform.trial.materials import stable_seed
from gradconform.trial.random_trials import draw_trial
from gradconform.trial.trial import Trial

from .check import Judge, family

WAYS = ("full", "split", "mixed")

_STANDARD, _FULL = range(12), range(12, 36)


def drawn(way: str, numbers: Iterable[int]) -> dict[str, Trial]:
    """Return one random trial per number: the choices depend only on the check's name, not on hypothesis.

    The tensors that the caller passes are not random here: the space varies them.
    """
    claims = Capabilities()
    seeds = {f"{n:02}": SeededChoices(stable_seed("property", way, n)) for n in numbers}
    return {n: draw_trial(seed, claims, way=way, passed=False) for n, seed in seeds.items()}


@family("property.full", drawn("full", _STANDARD))
@family("property.full", drawn("full", _FULL), profile="full")
def full() -> Judge:
    """B MUST give the gradients of plain autograd and change nothing else, in program {program} on {stage}.

    A list of stages shows only the mistakes that its authors imagined; random stages have no such limit.

    Catches: a mistake that needs a graph, a program and options that no other check combines.
    """
    return all_requirements


@family("property.split", drawn("split", _STANDARD))
@family("property.split", drawn("split", _FULL), profile="full")
def split() -> Judge:
    """I and W MUST give the gradients of plain autograd and change nothing else, in program {program} on {stage}.

    The cut between I and W depends on the graph, and random graphs have forms that no list of stages has.

    Catches: a cut that loses or doubles a path in a graph that no other check has.
    """
    return all_requirements


@family("property.mixed", drawn("mixed", _STANDARD))
@family("property.mixed", drawn("mixed", _FULL), profile="full")
def mixed() -> Judge:
    """B, I and W MUST give the gradients of plain autograd and change nothing else, in program {program} on {stage}.

    Schedules split some micro-batches and not others, so one kind meets the state that the other kind leaves.

    Catches: a context of one micro-batch that the backward of another one disturbs.
    """
    return all_requirements
