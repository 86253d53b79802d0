"""Swaps layers of a stage for an implementation's own, and restores them afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

#: The attributes in which a module stores things by name.
_REGISTRIES = ("_parameters", "_buffers", "_modules")

#: The contexts that undo the swaps made now, the innermost last.
_NOTING: list[contextlib.ExitStack] = []


class Swap:
    """Layers that were swapped; :meth:`undo`, or the end of ``with``, restores the stage's own."""

    def __init__(self) -> None:
        """Create a swap without layers."""
        self._undo = contextlib.ExitStack()
        self.layers: tuple[nn.Module, ...] = ()  #: the swapped layers, in the order of ``stage.modules()``

    def put(self, layer: nn.Module, standing: type[nn.Module] | None, attributes: Mapping[str, Any]) -> None:
        """Give a layer another class, if any, and attributes; undo restores the old ones."""
        replaced = {name: value for name, value in vars(layer).items() if name in attributes}
        self._undo.callback(_put_back, layer, type(layer), replaced, _names(layer))
        if standing is not None:
            layer.__class__ = standing
        vars(layer).update(attributes)  # not through nn.Module, which would register a module among them in the stage
        self.layers += (layer,)

    def undo(self) -> None:
        """Restore every layer; a second call does nothing."""
        self._undo.close()

    def __enter__(self) -> Swap:  # noqa: PYI034 (Self is in Python from 3.11 on)
        """Return this swap."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Undo the swap."""
        self.undo()


def _names(layer: nn.Module) -> list[tuple[dict[str, Any], set[str]]]:
    """Return every mapping in which a layer stores things by name, with the current names."""
    held = vars(layer)
    return [(place, set(place)) for place in (held, *(held[registry] for registry in _REGISTRIES))]


def _put_back(
    layer: nn.Module, kind: type[nn.Module], replaced: dict[str, Any], names: list[tuple[dict[str, Any], set[str]]]
) -> None:
    """Restore a layer's class and replaced attributes, and remove what was added since."""
    layer.__class__ = kind
    for place, there in names:
        for name in set(place) - there:
            del place[name]
    vars(layer).update(replaced)


def swap(
    stage: nn.Module,
    kind: type[nn.Module],
    other: type[nn.Module] | Callable[[Any], Callable[..., Any]],
    **attributes: Any,
) -> Swap:
    """Return a swap that makes every layer of ``stage`` whose type is ``kind`` compute as ``other`` does.

    Each layer stays the same object, with its name, its parameters and its hooks. This also holds if it is used in
    several places or is the stage itself. A subclass of ``kind`` is not changed.

    - If ``other`` is a subclass of ``kind``, each layer becomes one in place: its ``__init__`` does not run, and
      ``attributes`` are set on the layer, such as the queue that its backward fills.
    - Any other ``other`` is called with each layer and with ``attributes``. It returns the replacement of the layer's
      ``forward``: a module that holds the layer's own parameters, or a function.

    The kit undoes a swap made by ``Adapter.open`` when the session is closed, or if ``open`` raises. Elsewhere use
    ``with swap(...):`` or :meth:`Swap.undo`. Undoing also removes attributes that were added to the layer since.

    Raises ``TypeError`` if the replacement cannot be called, and ``ValueError`` for a module with parameters of its
    own: those would be trained, but nothing would check their gradients.

    >>> from torch import nn
    >>> class Mine(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x) * self.gain
    >>> stage = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with swap(stage, nn.Linear, Mine, gain=2.0) as swapped:
    ...     print(type(stage[0]).__name__, len(swapped.layers))
    Mine 1
    >>> type(stage[0]).__name__, hasattr(stage[0], "gain")
    ('Linear', False)
    """
    made = Swap()
    try:
        for layer in [module for module in stage.modules() if type(module) is kind]:
            if isinstance(other, type) and issubclass(other, kind):
                made.put(layer, other, attributes)
            else:
                make: Callable[..., Any] = other
                made.put(layer, None, {"forward": _in_place_of(layer, make(layer, **attributes))})
    except BaseException:
        made.undo()
        raise
    if _NOTING:
        _NOTING[-1].callback(made.undo)
    return made


def _in_place_of(layer: nn.Module, given: Any) -> Callable[..., Any]:
    """Return the replacement for a layer's forward; raise if it is not usable."""
    if not callable(given):
        msg = f"{given!r} cannot run in place of {layer!r}; expected a module or a function"
        raise TypeError(msg)
    own = {id(parameter) for parameter in layer.parameters()}
    named: dict[str, Any] = dict(given.named_parameters()) if hasattr(given, "named_parameters") else {}
    strangers = [name for name, parameter in named.items() if id(parameter) not in own]
    if strangers:
        msg = (
            f"{given!r} has parameters of its own, {', '.join(strangers)}; expected those of the layer that it replaces"
        )
        raise ValueError(msg)
    return given  # type: ignore[no-any-return] # it can be called


@contextlib.contextmanager
def noting_swaps() -> Iterator[contextlib.ExitStack]:
    """Record every swap made within; closing the yielded stack undoes them, the last first, and so does an error.

    It also records swaps of another thread that runs while this one waits.
    """
    undo = contextlib.ExitStack()
    _NOTING.append(undo)
    try:
        yield undo
    except BaseException:
        undo.close()
        raise
    finally:
        _NOTING.remove(undo)
