"""Schedules: a chain of stages on one implementation, run in the order of a whole pipeline.

The orders are those of torch 2.13.0's schedule classes (fixtures/schedules/orders holds the recordings). A case names
the class, then ranks x stages per rank x micro-batches. Each stage passes its activations to the next stage and its
gradients back, as two stages on one rank do. The last stage has the loss. `gradconform run TARGET --schedule FILE.csv`
judges your own schedule in the same way.
"""

from __future__ import annotations

from dataclasses import replace

from gradconform.fixtures.schedules import recorded
from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.chains import EMBEDDING, FORK, FROZEN, JOIN, MLP, NORMED, RESIDUAL, TIED
from gradconform.judge import gradients
from gradconform.judge.chain import chained
from gradconform.trial.program import write
from gradconform.trial.trial import Trial

from .cases import on_chain
from .check import Judge, family

#: Torch's names of the schedules, each with its part of a check's id, its sizes, and a large one for profile ``full``.
_SCHEDULES = {
    "1F1B": ("1f1b", ("2x1x3", "4x1x5"), "8x1x11"),
    "DualPipeV": ("dual-pipe-v", ("2x2x5", "3x2x7"), "5x2x13"),
    "GPipe": ("gpipe", ("2x1x3", "4x1x5"), "8x1x11"),
    "Interleaved1F1B": ("interleaved-1f1b", ("2x2x3", "3x2x5"), "4x3x8"),
    "InterleavedZeroBubble": ("interleaved-zero-bubble", ("2x2x3", "3x2x5"), "4x3x8"),
    "LoopedBFS": ("looped-bfs", ("2x2x3", "3x2x5"), "4x3x8"),
    "ZBVZeroBubble": ("zbv-zero-bubble", ("2x2x3", "3x2x5"), "5x2x11"),
}


_SMALL = {
    f"{case}-{size}": on_chain(recorded(f"{name}-{size}"))
    for name, (case, sizes, _) in _SCHEDULES.items()
    for size in sizes
}


@family("schedule.gradients", _SMALL)
def gradients_in_schedule() -> Judge:
    """Stages chained in {case} MUST give the outputs, losses and gradients of the whole model after every action.

    A schedule runs backwards in orders that no single-stage test has, and each stage's mistake reaches the next one.

    Catches: a dropped or swapped W, a returned gradient overwritten while another stage reads it, or mixed contexts of
    two stages.
    """
    return chained


def _alone(*chains: Trial) -> tuple[Trial, ...]:
    """Return a trial per stage of the chains, with the actions of that stage alone."""
    trials: list[Trial] = []
    for chain in chains:
        for stage, case in enumerate(chain.stages):
            program = write(replace(action, stage=0) for action in chain.actions if action.stage == stage)
            trials.append(Trial(stages=(case,), program=program, loss=chain.loss_at(stage)))
    return tuple(dict.fromkeys(trials))


def _special(*stages: StageCase) -> tuple[Trial, ...]:
    """Return trials of four stages in three orders: full backward, I and W, and both alternately."""
    return tuple(on_chain(recorded(name), stages) for name in ("1F1B-4x1x5", "ZBVZeroBubble-2x2x3", "DualPipeV-2x2x5"))


#: Chains in which one stage passes on something special.
_CHAINS = {
    "embedding-first": _special(EMBEDDING, RESIDUAL, NORMED, MLP),
    "frozen-first": _special(FROZEN, RESIDUAL, NORMED, MLP),
    "frozen-between": _special(MLP, FROZEN, FROZEN, RESIDUAL),
    "tied": _special(TIED, TIED, RESIDUAL, TIED),
    "two-tensors": _special(FORK, JOIN, FORK, JOIN),
    "two-tensors-last": _special(MLP, FORK, JOIN, FORK),
}
_LARGE = {f"{case}-{size}": on_chain(recorded(f"{name}-{size}")) for name, (case, _, size) in _SCHEDULES.items()}


@family("schedule.alone", {case: _alone(chain) for case, chain in _SMALL.items()})
@family("schedule.alone", {case: _alone(*chains) for case, chains in _CHAINS.items()})
@family("schedule.alone", {case: _alone(chain) for case, chain in _LARGE.items()}, profile="full")
def gradients_in_turn() -> Judge:
    """Each stage alone MUST give the gradients of plain autograd, in its action order within {case}.

    A target that can hold only one stage per process must still be right in every stage's own order.

    Catches: contexts that are used in another order than the schedule requires.
    """
    return gradients


@family("schedule.large", _LARGE, profile="full")
def gradients_in_large_schedule() -> Judge:
    """Stages chained in {case} MUST give the outputs, losses and gradients of the whole model after every action.

    With eight to twelve stages and up to thirteen micro-batches, more micro-batches wait at the same time.

    Catches: a queue or cache of contexts that is too short for a deep pipeline.
    """
    return chained


@family("schedule.chain", _CHAINS)
def gradients_in_chain() -> Judge:
    """A chain ({case}) MUST give the outputs, losses and gradients of the whole model, in 1F1B, ZBV and DualPipeV.

    A special stage, such as a frozen one, reaches all other stages through the tensors that it sends.

    Catches: swapped gradients of two tensors, a frozen stage that returns nothing, or lost parameters of a first stage
    without input gradients.
    """
    return chained
