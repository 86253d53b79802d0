"""Finds parameter gradients that another session wrote, or that went to a copy of their parameter."""

from __future__ import annotations

from collections.abc import Sequence

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.trial.program import Action

from .cause import Cause, Mistake
from .no_effect import due_and_unchanged
from .parts import step_before
from .rerun import rerun_of


def other_session(evidence: Evidence, step: Step, added: Sequence[int | None]) -> Action | None:
    """Return the W of another stage that added the gradients of a pending W, found at an action that adds nothing."""
    if step.action.kind in {"B", "W"}:
        return None
    earlier = evidence.trial.actions[: step.position]
    own = [action for action in earlier if action.stage == step.action.stage]
    waiting = {a.mb for a in own if a.kind == "I"} - {a.mb for a in own if a.kind == "W"}
    before = step_before(evidence, step)
    since = earlier[0 if before is None else before.position + 1 :]
    others = [action for action in since if action.kind == "W" and action.stage != step.action.stage]
    return others[-1] if others and added and waiting.issuperset(added) else None


def recomputed_alone(evidence: Evidence, name: str, step: Step) -> Cause | None:
    """Return the cause that only the parameters of a forward that the backward runs again got nothing."""
    if step.action.kind not in {"B", "W"}:
        return None
    due, unchanged = due_and_unchanged(evidence, step)
    if name not in unchanged or unchanged == due:
        return None
    inside = evidence.recomputed.of(("inside", step.action.stage), lambda: _run_again(evidence, step))
    return Cause(Mistake.DETACHED_COPY) if unchanged <= inside and due - inside else None


def _run_again(evidence: Evidence, step: Step) -> frozenset[str]:
    """Return the parameters of the modules that plain autograd's backward runs again."""
    again = rerun_of(evidence, step)
    found: set[str] = set()

    def note(prefix: str) -> None:
        module = again.stage.get_submodule(prefix)
        found.update(f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False))

    handles = [
        module.register_forward_pre_hook(lambda _, __, prefix=prefix: note(prefix))
        for prefix, module in again.stage.named_modules()
    ]
    again.grads(again.given)
    for handle in handles:
        handle.remove()
    return frozenset(found)
