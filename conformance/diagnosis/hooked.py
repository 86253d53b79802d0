"""Hooks on the activations of a stage that change a gradient, applied another number of times than once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step

from .cause import Cause, Mistake
from .jointly import explained, given_by, wrong
from .replay import Replay

Hook = Callable[[Tensor], Tensor | None]

#: What puts a hook on a tensor.
_PUT: Any = Tensor.register_hook

#: How often a hook may be applied by mistake.
_TIMES = {2: Mistake.HOOK_TWICE, 0: Mistake.HOOK_NEVER}


class Counted(TorchFunctionMode):
    """Lets the hooks that a forward puts on tensors be applied ``times`` each, those whose numbers are in ``which``.

    ``met`` has all of them, each with a tensor like the gradient that it is to be given.
    """

    def __init__(self, times: int = 1, which: Container[int] = ()) -> None:
        super().__init__()
        self.met: list[tuple[Hook, Tensor]] = []
        self._times, self._which = times, which

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Put a hook on a tensor that calls the given one as often as is asked; do all else as it is."""
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
    """Return how often hooks of the forward were applied, where that explains all that the action gave, or None."""
    if step.action.kind not in {"B", "I", "W"} or step.action.misuse or evidence.trial.hand_grads:
        return None
    found: Cause | None = evidence.recomputed.of(("hooked", id(step)), lambda: _found(evidence, step))
    return found


def _found(evidence: Evidence, step: Step) -> Cause | None:
    factors = evidence.recomputed.of(("hooks", step.action.stage), lambda: _factors(evidence, step))
    changing = [number for number, factor in enumerate(factors) if factor != 1.0]
    if not changing:
        return None
    all_given = given_by(evidence, step)
    if not any(given.got is not None for given in wrong(all_given)):
        return None
    for which in _selections(changing):
        for times, mistake in _TIMES.items():
            again = _again(evidence, step, Counted(times, which))
            if explained(all_given, again.grads(again.given)):
                known = tuple(factor for number in which if (factor := factors[number]) is not None)
                return Cause(mistake, factors=known, counts=(len(which),))
    return None


def _again(evidence: Evidence, step: Step, counted: Counted) -> Replay:
    with counted:
        return Replay(evidence, step.action.stage, step.action.mb)


def _selections(changing: list[int]) -> Iterator[list[int]]:
    """Yield each hook alone, then all of them."""
    yield from ([number] for number in changing)
    if len(changing) > 1:
        yield changing


def _factors(evidence: Evidence, step: Step) -> list[float | None]:
    """Return what each hook of a stage's forward multiplies a gradient by, None where it is no factor."""
    counted = Counted()
    _again(evidence, step, counted)
    return [_factor(hook, ones) for hook, ones in counted.met]


def _factor(hook: Hook, ones: Tensor) -> float | None:
    try:
        changed = hook(ones.clone())
    except Exception:  # noqa: BLE001 (a hook of somebody's own may want what only its own backward has)
        return None
    if changed is None:
        return 1.0
    first = changed.reshape(-1)[:1]
    same = bool(first.numel()) and not changed.is_complex() and bool((changed == first).all())
    return float(first) if same else None
