"""Runs checks of training steps on the processes that they need, with another runtime for each if named."""

from __future__ import annotations

from gradconform.pipeline.exchange import Job
from gradconform.pipeline.launch import run_pipeline
from gradconform.pipeline.ranks import Machines
from gradconform.pipeline.training_step.composition import StepCase, step_cases
from gradconform.results import Result

#: Every check of a training step by its id.
CHECKS = {case.id: case for case in step_cases("standard")}


def check_of(text: str) -> StepCase:
    """Return the check with a name, or the first with all these values in its row."""
    if f"step.{text}" in CHECKS:
        return CHECKS[f"step.{text}"]
    return next(case for case in CHECKS.values() if set(text.split()) <= set(case.row))


def judged(cases: list[StepCase], target: str) -> dict[str, Result]:
    """Run cases on the processes that they need, and return their results."""
    found: dict[str, Result] = {}
    for ranks in sorted({case.composition.ranks for case in cases}):
        own = tuple(sorted((case for case in cases if case.composition.ranks == ranks), key=lambda case: case.row))
        job = Job(target=target, cases=own, device="cpu", dtype="float32", seed=20, timeout=120, runtime=True)
        assert run_pipeline(job, Machines(ranks=ranks), lambda one: found.update({one.check: one})) is None
    return found
