"""Properties: random stages and programs, the same ones in every run, judged by all that holds of every stage."""

from __future__ import annotations

from collections.abc import Iterable

from gradconform.adapter import Capabilities
from gradconform.fixtures.random_stages import SeededChoices
from gradconform.judge import whole
from gradconform.trial.materials import stable_seed
from gradconform.trial.random_trials import draw_trial
from gradconform.trial.trial import Trial

from .check import Judge, family

WAYS = ("full", "split", "mixed")

_STANDARD, _FULL = range(12), range(12, 36)


def drawn(way: str, numbers: Iterable[int]) -> dict[str, Trial]:
    """Return one random trial per number: the choices depend on the name of the check alone, not on hypothesis.

    Which tensors the caller passes is not drawn: the space varies that.
    """
    claims = Capabilities()
    seeds = {f"{n:02}": SeededChoices(stable_seed("property", way, n)) for n in numbers}
    return {n: draw_trial(seed, claims, way=way, passed=False) for n, seed in seeds.items()}


@family("property.full", drawn("full", _STANDARD))
@family("property.full", drawn("full", _FULL), profile="full")
def full() -> Judge:
    """B MUST give the gradients of plain autograd, and change nothing else, in {program} on {stage}.

    Stages that somebody thought of show the mistakes that somebody thought of; random ones have no such taste.

    Catches: a mistake that takes a graph, a program and options that no other check has together.
    """
    return whole


@family("property.split", drawn("split", _STANDARD))
@family("property.split", drawn("split", _FULL), profile="full")
def split() -> Judge:
    """I and W MUST give the gradients of plain autograd, and change nothing else, in {program} on {stage}.

    Where the graph is cut between I and W depends on its form; random graphs have forms that no list of stages has.

    Catches: a cut that loses or doubles a path, in a graph that no other check has.
    """
    return whole


@family("property.mixed", drawn("mixed", _STANDARD))
@family("property.mixed", drawn("mixed", _FULL), profile="full")
def mixed() -> Judge:
    """B, I and W MUST give the gradients of plain autograd, and change nothing else, in {program} on {stage}.

    Schedules split some micro-batches and not others, and what one way leaves behind the other way meets.

    Catches: a context of one micro-batch disturbed by the backward of another.
    """
    return whole
