"""Right variants that store the sums of parameter gradients in other places."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec

from .sessions import APART, Grads, Returned, Session, adapter, added


class _FlatBuffer(Returned):
    """Keeps the sums in one flat buffer per dtype with a view for every parameter, like a bucket for a reduction."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.views: dict[str, Tensor] = {}
        for dtype in {parameter.dtype for parameter in self.trainable.values()}:
            held = {name: parameter for name, parameter in self.trainable.items() if parameter.dtype == dtype}
            device = next(iter(held.values())).device
            flat = torch.zeros(sum(parameter.numel() for parameter in held.values()), dtype=dtype, device=device)
            parts = flat.split([parameter.numel() for parameter in held.values()])
            self.views.update({n: part.view(p.shape) for (n, p), part in zip(held.items(), parts, strict=True)})

    def store(self, name: str, grad: Tensor | None) -> None:
        if grad is not None:
            self.sums[name] = self.views[name].add_(grad)


class _Wide(Returned):
    """Keeps the sums in a wider float than the parameters, like ``main_grad``."""

    wide = torch.float32

    def store(self, name: str, grad: Tensor | None) -> None:
        wide = None if grad is None else grad.to(torch.promote_types(grad.dtype, self.wide))
        super().store(name, wide)


class _InFloat64(_Wide):
    wide = torch.float64


class _InPairs(Returned):
    """Adds micro-batches in pairs, and pairs of pairs, so that rounding grows only with their logarithm."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.levels: dict[str, list[Tensor | None]] = {name: [] for name in self._parameters}

    def store(self, name: str, grad: Tensor | None) -> None:
        if grad is None:
            return
        levels = self.levels[name]
        for place, held in enumerate(levels):
            if held is None:
                levels[place] = grad
                return
            grad, levels[place] = _sum(held, grad), None
        levels.append(grad)

    def param_grads(self) -> dict[str, Tensor | None]:
        return {name: _total(levels) for name, levels in self.levels.items()}


def _sum(one: Tensor, other: Tensor) -> Tensor:
    return other + one if one.layout != torch.strided and other.layout == torch.strided else one + other


def _total(levels: list[Tensor | None]) -> Tensor | None:
    held = [level for level in levels if level is not None]
    return reduce(_sum, held) if held else None


class _Hooked(Session):
    """Sets a hook on every parameter that reads its accumulated gradient."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.handles = [
            parameter.register_post_accumulate_grad_hook(partial(self.accumulated, name))
            for name, parameter in self.trainable.items()
        ]

    def accumulated(self, name: str, parameter: Tensor) -> None:
        """Read ``.grad``."""
        raise NotImplementedError

    def close(self) -> None:
        super().close()
        for handle in self.handles:
            handle.remove()


class _MovedAway(_Hooked):
    """Moves every new gradient from ``.grad`` to a sum in float32 or wider, and returns it at the end."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.main: dict[str, Tensor | None] = dict.fromkeys(self._parameters)

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        for parameter in self.trainable.values():
            parameter.grad = None  # what was given back at the end of the step before
        return super().forward(mb, args, target)

    def accumulated(self, name: str, parameter: Tensor) -> None:
        grad, parameter.grad = parameter.grad, None
        if grad is not None:
            self.main[name] = added(self.main[name], grad.to(torch.promote_types(grad.dtype, torch.float32), copy=True))

    def finish(self) -> None:
        for name, parameter in self.trainable.items():
            main = self.main[name]
            parameter.grad = None if main is None else main.to(parameter.dtype, copy=True)

    def param_grads(self) -> dict[str, Tensor | None]:
        return dict(self.main)


class _Bucket(_Hooked):
    """Makes every ``.grad`` a view of one buffer per dtype from its first gradient on, like a data-parallel wrapper."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.views: dict[str, Tensor] = {}
        for dtype in {parameter.dtype for parameter in self.trainable.values()}:
            held = {name: parameter for name, parameter in self.trainable.items() if parameter.dtype == dtype}
            sizes = [parameter.numel() for parameter in held.values()]
            flat = torch.empty(sum(sizes), dtype=dtype, device=next(iter(held.values())).device)
            parts = zip(held.items(), flat.split(sizes), strict=True)
            self.views.update({name: part.view(parameter.shape) for (name, parameter), part in parts})
        for name, parameter in self.trainable.items():
            self.accumulated(name, parameter)

    def accumulated(self, name: str, parameter: Tensor) -> None:
        grad = parameter.grad
        if grad is not None and grad is not self.views[name] and grad.layout == torch.strided and not _is_part(grad):
            parameter.grad = self.views[name].copy_(grad)


def _is_part(grad: Tensor) -> bool:
    """Return whether a gradient is in a larger buffer, which its caller then owns and reads."""
    return grad.untyped_storage().nbytes() > grad.nbytes


class _AddedByHand(Session):
    """Captures parameter gradients at their edges, and adds them to ``.grad`` itself."""

    def weigh(self, edges: Any, starts: list[Tensor]) -> None:
        into = [torch.autograd.graph.get_gradient_edge(parameter) for parameter in self.trainable.values()]
        found: Grads = torch.autograd.grad(edges, into, starts, allow_unused=True)
        for parameter, grad in zip(self.trainable.values(), found, strict=True):
            if grad is not None and parameter.grad is not None:
                parameter.grad = added(parameter.grad, grad)
            elif grad is not None:
                parameter.grad = torch.empty_like(parameter).copy_(grad) if grad.layout == torch.strided else grad


VARIANTS: dict[str, Callable[[], object]] = {
    "gradients-returned": partial(adapter, Returned, **APART),
    "flat-buffer": partial(adapter, _FlatBuffer, **APART, sparse_grads=False, changed_params=False),
    "main-grad-in-float32": partial(adapter, _Wide, **APART),
    "sums-in-float64": partial(adapter, _InFloat64, **APART),
    "sums-in-pairs": partial(adapter, _InPairs, **APART),
    "moved-away-and-given-back": partial(adapter, _MovedAway, grads_in_param_grad=False, changed_params=False),
    "views-of-a-bucket": partial(adapter, _Bucket),
    "captured-at-edges": partial(adapter, _AddedByHand, hooks="never"),
}
