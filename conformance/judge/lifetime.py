"""Judges lifetimes: which tensors must be freed, with the garbage collector off."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.text.counts import count

from .finding import Finding
from .gradients import flushed_later
from .state import raised

#: The largest growth in live tensors over thirty micro-batches: caches fill once, not each time, and sums in pairs hold
#: a few more now and then. A leak of one per micro-batch is thirty.
SLACK = 9

_KINDS = {"outputs": "output", "saved": "saved tensor", "args": "argument"}


def released(evidence: Evidence) -> Iterator[Finding]:
    """Yield tensors of a micro-batch that are alive although its caller and plain autograd have freed them.

    Tensors saved in its graph are checked after its B or W, while the caller may still hold the outputs; all tensors
    are checked at the end.
    """
    yield from raised(evidence.observation)
    if evidence.observation.raised is not None:  # what is alive then is its consequence
        return
    reported: set[tuple[int, str]] = set()
    last = evidence.observation.steps[-1]
    for step in evidence.observation.steps:
        wanted = evidence.oracle_step(step).alive
        for mb, alive in step.alive.items():
            ended = step.action.kind in {"B", "W"} and step.action.mb == mb and not flushed_later(evidence, step)
            for what, text in _KINDS.items() if step is last else (("saved", _KINDS["saved"]),) if ended else ():
                kept, allowed = getattr(alive, what), getattr(wanted[mb], what)
                if kept > allowed and (mb, what) not in reported:
                    reported.add((mb, what))
                    why = _why(step, mb) if step is last else "the graph is kept"
                    seen = f"keeps {count(kept, text)} alive; plain autograd keeps {allowed}; {why}"
                    yield Finding("alive", f"micro-batch {mb}", str(step.action), seen, sort="micro-batch")


def _why(step: Step, mb: int) -> str:
    """Return why tensors of a micro-batch are alive at the end, as a run of the garbage collector has shown."""
    if mb not in step.held:
        return "only the garbage collector frees them"
    holder = step.held[mb]
    return f"{holder} holds them" if holder else "the garbage collector does not free them either"


def outputs_released_by_input_pass(evidence: Evidence) -> Iterator[Finding]:
    """Yield outputs that are alive between I and W although their caller has freed them."""
    yield from raised(evidence.observation)
    for step in evidence.observation.steps:
        if step.action.kind == "drop" and step.alive[step.action.mb].outputs:
            alive = step.alive[step.action.mb].outputs
            text = f"has outputs alive between I and W although the caller holds none: {alive}"
            yield Finding("alive", f"micro-batch {step.action.mb}", str(step.action), text, sort="micro-batch")


def released_once_sent(evidence: Evidence) -> Iterator[Finding]:
    """Yield outputs that are still alive after they were sent, and tensors that plain autograd's edges do not hold."""
    yield from raised(evidence.observation)
    for step in evidence.observation.steps:
        if step.action.kind == "send":
            alive, allowed = (
                step.alive[step.action.mb].outputs,
                evidence.oracle_step(step).alive[step.action.mb].outputs,
            )
            if alive > allowed:
                text = f"has outputs alive although the caller sent and freed them: {alive} (plain autograd: {allowed})"
                yield Finding("alive", f"micro-batch {step.action.mb}", str(step.action), text, sort="micro-batch")


def no_growth(evidence: Evidence) -> Iterator[Finding]:
    """Yield the growth in live tensors from the twentieth to the last micro-batch, if it is too large."""
    yield from raised(evidence.observation)
    counts = [step.live_tensors for step in evidence.observation.steps if step.live_tensors is not None]
    allowed = [step.live_tensors for step in evidence.oracle.steps if step.live_tensors is not None]
    if len(counts) == len(allowed) and len(counts) > 1:
        growth, usual = counts[-1] - counts[0], allowed[-1] - allowed[0]
        if growth > max(usual, 0) + SLACK:
            text = f"keeps {growth} more tensors alive after the last micro-batch than after the twentieth"
            yield Finding("alive", "the session", "", f"{text}; plain autograd keeps {usual}")
