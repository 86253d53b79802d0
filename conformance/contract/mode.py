"""Modes: what a process is set to, and a stage's own mode, while its actions run."""

from __future__ import annotations

from gradconform.judge import gradients
from gradconform.trial.trial import Trial

from .cases import ways
from .check import Judge, family

_FULL, _SPLIT = "F0 F1 B0 B1", "F0 F1 I0 I1 W0 W1"

#: The modes, and the stages that each is tried on: those on which it makes a difference, beside a plain one. What else
#: changes numbers is asked of devices (:mod:`gradconform.contract.on_setting`).
_STAGES = {
    "eval": ("dropout", "batch-norm"),
    "autocast": ("mlp", "linear-3d"),
    "no_grad": ("mlp", "checkpoint"),
    "thread": ("mlp", "checkpoint"),
    "deterministic": ("mlp", "tied-parallel"),
    "default_dtype": ("mlp", "tied-parallel"),
}


def _trials(mode: str) -> dict[str, Trial]:
    trials = ways(_STAGES[mode], full=_FULL, split=_SPLIT, modes=frozenset({mode}))
    return {f"{mode.replace('_', '-')}-{name}": trial for name, trial in trials.items()}


@family("mode.gradients", {name: trial for mode in _STAGES for name, trial in _trials(mode).items()})
@family(
    "mode.gradients",
    {
        f"together-{name}": trial
        for name, trial in ways(
            "mlp", full=_FULL, split=_SPLIT, modes=frozenset({"no_grad", "thread", "default_dtype"})
        ).items()
    },
)
def modes() -> Judge:
    """Gradients MUST be those of plain autograd in {program} on {stage} while {modes}.

    A stage is evaluated, trained under autocast, run by a runtime that records no gradients, from a thread of its own,
    in a deterministic run, or in a program whose default dtype is float64; plain autograd minds none of it.

    Catches: a backward that needs the caller's grad mode or thread, memory that was never written to, tensors of the
    default dtype, a forward run again in another mode.
    """
    return gradients
