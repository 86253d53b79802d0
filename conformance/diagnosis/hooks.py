"""Finds hooks on the activations, modules or parameters of a stage that were not applied exactly once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradconform.drive.evidence import Evidence
from gradconform.drive.gradient_hooks import HOOK_FACTOR, HOOK_LIMIT
from gradconform.drive.observation import Step
from gradconform.trial.program import forward_of

from .cause import Cause, Mistake
from .common_cause import explained, given_by, wrong
from .parts import Part, own_part
from .rerun import Rerun, rerun_of
from .wrong_tensor import WrongTensor

Hook = Callable[[Tensor], Tensor | None]

#: The functions that put a hook on a tensor.
_PUT: Any = Tensor.register_hook

#: How often a hook may be applied by mistake.
_TIMES = {2: Mistake.HOOK_TWICE, 0: Mistake.HOOK_NEVER}


class Counted(TorchFunctionMode):
    """Applies the hooks that a forward puts on tensors ``times`` each, if their numbers are in ``which``.

    ``met`` has all of them, each with a tensor like the gradient that it receives.
    """

    def __init__(self, times: int = 1, which: Container[int] = ()) -> None:
        super().__init__()
        self.met: list[tuple[Hook, Tensor]] = []
        self._times, self._which = times, which

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Put a hook on a tensor that calls the given one ``times`` times; pass other functions on unchanged."""
        del types
        if func is not _PUT:
            return func(*args, **(kwargs or {}))
        tensor, hook = args[0], (*args[1:], *(kwargs or {}).values())[0]
        self.met.append((hook, torch.ones_like(tensor.detach())))
        times = self._times if len(self.met) - 1 in self._which else 1
        return func(tensor, _repeated(hook, times))


def _repeated(hook: Hook, times: int) -> Hook:
    def repeated(grad: Tensor) -> Tensor:
        for _ in range(times):
            changed = hook(grad)
            grad = grad if changed is None else changed
        return grad

    return repeated


def hooked(evidence: Evidence, step: Step) -> Cause | None:
    """Return how often hooks of the forward were applied, if that explains all values of the action, or None."""
    if step.action.kind not in {"B", "I", "W"} or step.action.misuse or evidence.trial.hand_grads:
        return None
    found: Cause | None = evidence.recomputed.of(("hooked", id(step)), lambda: _found(evidence, step))
    return found


def _found(evidence: Evidence, step: Step) -> Cause | None:
    first = next(candidates := chain(_on_tensors(evidence, step), _on_modules(evidence, step)), None)
    if first is None:  # common: the stage has no hooks
        return None
    all_given = given_by(evidence, step)
    if not any(given.got is not None for given in wrong(all_given)):
        return None
    for cause, again in chain([first], candidates):
        if explained(all_given, again.grads(again.given)):
            return cause
    return None


def _on_tensors(evidence: Evidence, step: Step) -> Iterator[tuple[Cause, Rerun]]:
    factors = evidence.recomputed.of(("hooks", step.action.stage), lambda: _factors(evidence, step))
    changing = [number for number, factor in enumerate(factors) if factor != 1.0]
    for which in _selections(changing) if changing else ():
        for times, mistake in _TIMES.items():
            known = tuple(factor for number in which if (factor := factors[number]) is not None)
            yield Cause(mistake, factors=known, counts=(len(which),)), _again(evidence, step, Counted(times, which))


#: The attributes in which torch stores the hooks of a module's backward.
_KEPT = ("_backward_hooks", "_backward_pre_hooks")


def _on_modules(evidence: Evidence, step: Step) -> Iterator[tuple[Cause, Rerun]]:
    """Yield the backward of the stage without the hooks of its modules, of one kind or of both."""
    modules = list(rerun_of(evidence, step).stage.modules())
    there = [name for name in _KEPT if any(vars(module)[name] for module in modules)]
    for names in [*([name] for name in there), there] if there else ():
        yield Cause(Mistake.MODULE_HOOKS_NEVER), rerun_of(evidence, step, partial(_clear, names))


def _clear(names: list[str], stage: nn.Module) -> None:
    for module in stage.modules():
        for name in names:
            vars(module)[name].clear()


def _again(evidence: Evidence, step: Step, counted: Counted) -> Rerun:
    forward = forward_of(evidence.trial.actions, step.action.stage, step.action.mb, step.position + 1)
    with counted:
        return Rerun(evidence, step.action.stage, step.action.mb, forward)


def _selections(changing: list[int]) -> Iterator[list[int]]:
    """Yield each hook alone, then all of them."""
    yield from ([number] for number in changing)
    if len(changing) > 1:
        yield changing


def _factors(evidence: Evidence, step: Step) -> list[float | None]:
    """Return the factor of each hook of a stage's forward, None if it does not multiply."""
    counted = Counted()
    _again(evidence, step, counted)
    return [_factor(hook, ones) for hook, ones in counted.met]


def _factor(hook: Hook, ones: Tensor) -> float | None:
    try:
        changed = hook(ones.clone())
    except Exception:  # noqa: BLE001 (a user's hook may need what only its own backward has)
        return None
    if changed is None:
        return 1.0
    first = changed.reshape(-1)[:1]
    same = bool(first.numel()) and not changed.is_complex() and bool((changed == first).all())
    return float(first) if same else None


def of_caller(wrong: WrongTensor, name: str, parts: list[Part]) -> Cause | None:
    """Return how often the caller's hook on parameter ``name`` was applied, or that it was applied to parts."""
    own = own_part(wrong, parts)
    if own is None:
        return None
    if wrong.evidence.trial.altering == "clip":
        again = rerun_of(wrong.evidence, wrong.step)
        uses = again.uses(again.stage.get_parameter(name))
        apart = sum((use.clamp(-HOOK_LIMIT, HOOK_LIMIT) for use in uses), -own)
        return Cause(Mistake.HOOK_ON_PARTS) if len(uses) > 1 and wrong.explained_by(wrong.right + apart) else None
    if wrong.evidence.trial.altering != "scale":
        return None
    for times, mistake in _TIMES.items():
        if wrong.explained_by(wrong.right - own + own * HOOK_FACTOR ** (times - 1)):
            return Cause(mistake, factors=(HOOK_FACTOR,), counts=(1,))
    return None
