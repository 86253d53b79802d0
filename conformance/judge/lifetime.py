"""Judges lifetimes: what has to be gone, with the garbage collector off."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.evidence import Evidence
from gradconform.judge.finding import Finding
from gradconform.judge.state import raised

#: By how many live tensors a run may grow over thirty micro-batches without being told: caches fill once, not each time.
SLACK = 3


def released(evidence: Evidence) -> Iterator[Finding]:
    """Yield what of a micro-batch is alive at the end although its caller and plain autograd have let go of it."""
    yield from raised(evidence.observation)
    last = evidence.observation.steps[-1]
    wanted = evidence.oracle_step(last)
    for mb, alive in last.alive.items():
        for what, text in (("outputs", "outputs"), ("saved", "tensors saved in its graph"), ("args", "arguments")):
            count, allowed = getattr(alive, what), getattr(wanted.alive[mb], what)
            if count > allowed:
                seen = f"{count} {text} alive, under plain autograd {allowed}; only the garbage collector would free them"
                yield Finding("alive", f"micro-batch {mb}", str(last.action), seen)


def outputs_released_by_input_pass(evidence: Evidence) -> Iterator[Finding]:
    """Yield outputs that are alive between I and W although their caller has let go of them."""
    yield from raised(evidence.observation)
    for step in evidence.observation.steps:
        if step.action.kind == "drop" and step.alive[step.action.mb].outputs:
            count = step.alive[step.action.mb].outputs
            text = f"{count} outputs alive between I and W although nobody outside holds them"
            yield Finding("alive", f"micro-batch {step.action.mb}", str(step.action), text)


def no_growth(evidence: Evidence) -> Iterator[Finding]:
    """Yield by how much the number of live tensors grows from the twentieth to the last micro-batch."""
    yield from raised(evidence.observation)
    counts = [step.live_tensors for step in evidence.observation.steps if step.live_tensors is not None]
    allowed = [step.live_tensors for step in evidence.oracle.steps if step.live_tensors is not None]
    if len(counts) == len(allowed) and len(counts) > 1:
        growth, usual = counts[-1] - counts[1], allowed[-1] - allowed[1]
        if growth > max(usual, 0) + SLACK:
            text = f"{growth} more live tensors after the last micro-batch than after the twentieth"
            yield Finding("alive", "the session", "", f"{text}; under plain autograd {usual}")
