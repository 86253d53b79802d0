"""Modes: settings of the process and the mode of the stage while actions run."""

from __future__ import annotations

from gradconform.judge import gradients
from gradconform.trial.trial import Trial

from .cases import of, ways
from .check import Judge, family

_FULL, _SPLIT = "F0 F1 B0 B1", "F0 F1 I0 I1 W0 W1"

#: The modes and the stages for each: those on which the mode matters, and a plain one. Other settings that change
#: numbers are tested on devices (:mod:`gradconform.sources.settings`).
_STAGES = {
    "eval": ("dropout", "batch-norm"),
    "autocast": ("mlp", "linear-3d"),
    "no_grad": ("mlp", "checkpoint"),
    "thread": ("mlp", "checkpoint"),
    "deterministic": ("mlp", "tied-parallel"),
    "default_dtype": ("mlp", "tied-parallel"),
}

_FORWARD_THREAD = frozenset({"forward_thread"})


def _trials(mode: str) -> dict[str, Trial]:
    trials = ways(_STAGES[mode], full=_FULL, split=_SPLIT, modes=frozenset({mode}))
    return {f"{mode.replace('_', '-')}-{name}": trial for name, trial in trials.items()}


@family(
    "mode.gradients",
    {"forward-thread-full": of("mlp", _FULL, modes=_FORWARD_THREAD)},
    profile="full",
    since="1.1",
)
@family(
    "mode.gradients",
    {
        f"eval-{name}": trial
        for name, trial in ways(("always-dropout",), full=_FULL, split=_SPLIT, modes=frozenset({"eval"})).items()
    },
    since="1.1",
)
@family("mode.gradients", {"forward-thread-split": of("mlp", _SPLIT, modes=_FORWARD_THREAD)}, since="1.1")
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
    """Gradients MUST equal plain autograd's in program {program} on {stage}, while: {modes}.

    Users evaluate, use autocast, custom Functions, threads or deterministic runs, and plain autograd is right in all of
    them.

    Catches: a backward that needs the caller's grad mode, thread or default dtype, reads unwritten memory, or reruns
    the forward in another mode.
    """
    return gradients
