"""Right backwards that add the same numbers in another order: what a tolerance must let pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from gradconform.adapter import Capabilities, StageSpec, Tree
from gradconform.reference.autograd import AutogradSession, pair_roots

aten = torch.ops.aten


def _split(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Split the inner dimension in two and add the partial products."""
    half = a.shape[-1] // 2
    if half == 0:
        return product(a, b)
    return product(a[..., :half], b[..., :half, :]) + product(a[..., half:], b[..., half:, :])


def _transposed(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Compute (bᵀ aᵀ)ᵀ, which takes another path through the kernels."""
    return product(b.mT.contiguous(), a.mT.contiguous()).mT


def _flipped_sum(tensor: Tensor, dims: list[int] | None, *rest: Any, **options: Any) -> Tensor:
    """Sum from the last element to the first."""
    flipped = tensor.flip(list(dims or range(tensor.dim())))
    return aten.sum.dim_IntList(flipped, dims, *rest, **options)


def _conv_by_halves(*args: Any) -> tuple[Tensor | None, ...]:
    """Compute a convolution's weight and bias gradients as the sum over two halves of the batch."""
    grad, image, *rest = args
    half = image.shape[0] // 2
    if half == 0:
        return tuple(aten.convolution_backward(*args))
    parts = [aten.convolution_backward(g, i, *rest) for g, i in zip(grad.split(half), image.split(half), strict=True)]
    images, weights, biases = zip(*parts, strict=True)
    whole = None if images[0] is None else torch.cat(images)
    return (whole, *(None if given[0] is None else reduce(torch.add, given) for given in (weights, biases)))


def _products(order: Callable[..., Tensor]) -> dict[Any, Callable[..., Any]]:
    return {
        aten.mm.default: lambda a, b: order(aten.mm, a, b),
        aten.bmm.default: lambda a, b: order(aten.bmm, a, b),
        aten.sum.dim_IntList: _flipped_sum,
        aten.convolution_backward.default: _conv_by_halves,
    }


class _Replace(TorchDispatchMode):
    """Runs other code in place of some operators."""

    def __init__(self, table: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._table = table

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return self._table.get(func, func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


#: How a backward is computed otherwise, by name: a context in which plain autograd runs it.
KERNELS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "products split over the inner dimension": lambda: _Replace(_products(_split)),
    "products transposed": lambda: _Replace(_products(_transposed)),
    "torch's decompositions": lambda: _Replace(dict(decomposition_table)),
    "without oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "two threads": _two_threads,
}


def reversed_sum(grads: list[Tensor]) -> Tensor:
    """Add from the last micro-batch to the first."""
    return reduce(torch.add, reversed(grads))


def pairwise_sum(grads: list[Tensor]) -> Tensor:
    """Add in pairs, then pairs of pairs."""
    while len(grads) > 1:
        pairs = [grads[i : i + 2] for i in range(0, len(grads), 2)]
        grads = [reduce(torch.add, pair) for pair in pairs]
    return grads[0]


SUMS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "micro-batches added in reverse": reversed_sum,
    "micro-batches added pairwise": pairwise_sum,
}


class OtherKernels(AutogradSession):
    """Plain autograd whose backwards run in a context that computes them otherwise."""

    def __init__(self, stage: nn.Module, spec: StageSpec, name: str) -> None:
        """Keep the context's name."""
        super().__init__(stage, spec)
        self._context = KERNELS[name]

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run B in the context."""
        with self._context():
            return super().backward(mb, output_grads)


class OtherSums(AutogradSession):
    """Plain autograd per micro-batch; the parameter gradients of all micro-batches are added in another order."""

    def __init__(self, stage: nn.Module, spec: StageSpec, name: str) -> None:
        """Start without gradients."""
        super().__init__(stage, spec)
        self._sum = SUMS[name]
        self._terms: dict[str, list[Tensor]] = {}

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run B by itself and keep its terms."""
        args, roots = self._forwards.pop(mb)
        starts, grads = pair_roots(roots, output_grads)
        named = [(name, p) for name, p in self._stage.named_parameters() if p.requires_grad]
        wanted = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
        sought = [*wanted, *(parameter for _, parameter in named)]
        found = torch.autograd.grad(starts, sought, grads, allow_unused=True) if starts and sought else ()
        inputs = iter(found)
        returned = tuple(next(inputs, None) if isinstance(a, Tensor) and a.requires_grad else None for a in args)
        for (name, _), grad in zip(named, inputs, strict=False):
            if grad is not None:
                self._terms.setdefault(name, []).append(grad)
        return returned

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return the sums, in the order of this session."""
        names = (name for name, _ in self._stage.named_parameters())
        return {name: self._sum(list(self._terms[name])) if name in self._terms else None for name in names}


class Reordered:
    """An adapter of one of the ways above."""

    capabilities = Capabilities(split=False, none_output_grad=True, grads_in_param_grad=False)

    def __init__(self, name: str) -> None:
        """Take a name of :data:`KERNELS` or :data:`SUMS`."""
        self.name = name

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return a session on ``stage``."""
        return OtherKernels(stage, spec, self.name) if self.name in KERNELS else OtherSums(stage, spec, self.name)
