"""Layers of a stage that are an implementation's own for a while, and the stage's again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

#: Where a module keeps what is known by a name.
_REGISTRIES = ("_parameters", "_buffers", "_modules")

#: What undoes the swaps that are made now, the innermost last.
_NOTING: list[contextlib.ExitStack] = []


class Swap:
    """Layers that were swapped; :meth:`undo`, or the end of ``with``, gives the stage its own back."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._undo = contextlib.ExitStack()
        self.layers: tuple[nn.Module, ...] = ()  #: the swapped layers, in the order of ``stage.modules()``

    def put(self, layer: nn.Module, standing: type[nn.Module] | None, attributes: Mapping[str, Any]) -> None:
        """Give a layer another class, where there is one, and attributes; what it was is put back in the end."""
        replaced = {name: value for name, value in vars(layer).items() if name in attributes}
        self._undo.callback(_put_back, layer, type(layer), replaced, _names(layer))
        if standing is not None:
            layer.__class__ = standing
        vars(layer).update(attributes)  # past nn.Module, which would make a module among them one of the stage's
        self.layers += (layer,)

    def undo(self) -> None:
        """Put every layer back as it was; a second time does nothing."""
        self._undo.close()

    def __enter__(self) -> Swap:  # noqa: PYI034 (Self is in Python from 3.11 on)
        """Return this swap."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Undo it."""
        self.undo()


def _names(layer: nn.Module) -> list[tuple[dict[str, Any], set[str]]]:
    """Return everything in which a layer keeps something by name, with the names that are there now."""
    held = vars(layer)
    return [(place, set(place)) for place in (held, *(held[registry] for registry in _REGISTRIES))]


def _put_back(
    layer: nn.Module, kind: type[nn.Module], replaced: dict[str, Any], names: list[tuple[dict[str, Any], set[str]]]
) -> None:
    """Give a layer its class back and what was replaced, and take off it what has come since."""
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
    """Let every layer of ``stage`` whose type is ``kind`` compute as ``other`` does, and return what undoes it.

    A layer stays the object it is, with its name, its parameters and its hooks, also where it stands in several places
    or is the stage itself; a subclass of ``kind`` is left as it is.

    - Where ``other`` is a subclass of ``kind``, each layer becomes one in place: its ``__init__`` does not run, and
      ``attributes`` are set on the layer, such as the queue that its backward leaves to.
    - Anything else is called with each layer, and with ``attributes``, and returns what runs in place of the layer's
      ``forward``: a module of yours that holds the layer's own parameters, or a function.

    The kit undoes a swap that ``Adapter.open`` has made once the session is closed, and where ``open`` raises.
    Elsewhere ``with swap(...):`` or :meth:`Swap.undo` does. What the layer was given in between is taken off it.

    Raises ``TypeError`` for what cannot be called, ``ValueError`` for a module with parameters of its own: those would
    be trained, and nobody would see their gradients.

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
    """Return what is to run in place of a layer, if it can."""
    if not callable(given):
        msg = f"{given!r} cannot run in place of {layer!r}; expected a module or a function"
        raise TypeError(msg)
    own = {id(parameter) for parameter in layer.parameters()}
    named: dict[str, Any] = dict(given.named_parameters()) if hasattr(given, "named_parameters") else {}
    strangers = [name for name, parameter in named.items() if id(parameter) not in own]
    if strangers:
        msg = f"{given!r} has parameters of its own, {', '.join(strangers)}; expected those of the layer it stands for"
        raise ValueError(msg)
    return given  # type: ignore[no-any-return] # it can be called


@contextlib.contextmanager
def noting_swaps() -> Iterator[contextlib.ExitStack]:
    """Note every swap that is made within; closing what is given undoes them, the last first, as an error within does.

    Also those of another thread that runs while this one waits.
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
