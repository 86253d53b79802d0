"""One call of a kernel: its tensor arguments by schema position, and the same call with some replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradconform.devices.tensor_facts import place_of, reach_of, strides_of
from gradconform.trees import flattened, map_leaves, tensors

#: The errors that a kernel raises if it does not accept its arguments.
REFUSALS = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument: its number and name in the schema, its index in a list; ``written`` by the kernel."""

    number: int
    name: str
    item: int | None
    written: bool
    tensor: Tensor

    def __str__(self) -> str:
        """Return the argument as in a sentence: ``argument 2 (indices)``."""
        of_list = "" if self.item is None else f"[{self.item}]"
        return f"argument {self.number} ({self.name}{of_list})"


@dataclass(frozen=True)
class KernelCall:
    """A kernel, an overload of torch's dispatcher, with its arguments. :meth:`run` never changes the arguments.

    Two calls are ``alike`` if they differ only in the values of tensors.
    """

    func: Any
    args: Any
    kwargs: Any

    @property
    def name(self) -> str:
        """The kernel's name, such as ``aten::mm``."""
        return str(self.func.name()).partition(".")[0]

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensor arguments, in order."""
        return tuple(self._arguments())

    def _arguments(self) -> Iterator[Argument]:
        schema = self.func._schema.arguments  # noqa: SLF001 (torch has no other name for it)
        numbers = {argument.name: number for number, argument in enumerate(schema)}
        pairs = [*enumerate(self.args), *((numbers[name], value) for name, value in self.kwargs.items())]
        for number, value in pairs:
            alias = schema[number].alias_info
            several = isinstance(value, (list, tuple))
            for item, leaf in enumerate(flattened(value)):
                if isinstance(leaf, Tensor):
                    written = alias is not None and alias.is_write
                    yield Argument(number, schema[number].name, item if several else None, written, leaf)

    @property
    def shares_memory(self) -> bool:
        """Whether the kernel writes into an argument that shares memory with another one."""
        strided = [one for one in self.arguments if one.tensor.layout is torch.strided]
        places = [place_of(one.tensor) for one in strided]
        return any(one.written and places.count(place) > 1 for one, place in zip(strided, places, strict=True))

    def alike(self, *, strides: bool) -> str:
        """Return a key that calls share if they differ only in values; ``strides`` adds their strides to it."""

        def form(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.shape, leaf.dtype, leaf.layout, strides_of(leaf) if strides else None

        return f"{self.func} {map_leaves(form, (self.args, self.kwargs))}"

    def replaced(self, replacements: Sequence[Tensor]) -> KernelCall:
        """Return the same call with other tensors, one for each of :attr:`arguments`."""
        left = iter(replacements)
        args, kwargs = map_leaves(
            lambda leaf: next(left) if isinstance(leaf, Tensor) else leaf, (self.args, self.kwargs)
        )
        return KernelCall(self.func, args, kwargs)

    def with_argument(self, at: int, tensor: Tensor) -> KernelCall:
        """Return the same call with another tensor as argument ``at`` of :attr:`arguments`."""
        given = [one.tensor for one in self.arguments]
        given[at] = tensor
        return self.replaced(given)

    def run(self) -> list[Tensor] | None:
        """Return the tensors that the kernel returns, followed by those that it writes; None if it raises."""
        own = self.replaced([kept(one.tensor) if one.written else one.tensor for one in self.arguments])
        try:
            return own.results(own.func(*own.args, **own.kwargs))
        except REFUSALS:
            return None

    def results(self, returned: Any) -> list[Tensor]:
        """Return the tensors that the kernel ``returned``, followed by the arguments that it writes."""
        return [*tensors(returned), *(one.tensor for one in self.arguments if one.written)]

    def as_function(self, kept: Sequence[int]) -> Any:
        """Return the kernel as a function of its arguments that returns those of :meth:`results` numbered ``kept``."""

        def call(*args: Any, **kwargs: Any) -> list[Tensor]:
            found = KernelCall(self.func, args, kwargs).results(self.func(*args, **kwargs))
            return [found[number] for number in kept]

        return call


def kept(tensor: Tensor, values: Tensor | None = None) -> Tensor:
    """Return a copy of a tensor with its strides; without them if it has none, or its elements share memory.

    ``values`` are the tensor's on another device, where the copy shall be. On the CPU, gaps between its elements are
    zero: a kernel that reads indices there would write anywhere.
    """
    strides, values = strides_of(tensor), tensor.detach() if values is None else values
    if strides is None or 0 in strides:
        return values.clone()
    if values.device.type == "cpu":
        memory = torch.zeros(max(reach_of(tensor.shape, strides), 0), dtype=tensor.dtype)
        return memory.as_strided(tensor.shape, strides).copy_(values)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=values.device).copy_(values)
