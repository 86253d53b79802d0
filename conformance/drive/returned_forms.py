"""The forms of the values that a session's methods return: an error about a wrong one names the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

#: The usual types of gradients.
GRADIENTS = frozenset({type(None), Tensor, nn.Parameter})


def named_grads(returned: Any) -> dict[str, Tensor | None]:
    """Return what ``param_grads()`` returned, as a dict; raise ``TypeError`` if it maps no names to gradients."""
    if not isinstance(returned, Mapping):
        msg = f"param_grads() returned {_form(returned)}, expected a mapping of names to gradients or None"
        raise TypeError(msg)
    for name, grad in returned.items():
        if grad is not None and not isinstance(grad, Tensor):
            msg = f"param_grads() has {_form(grad)} for {name!r}, expected a tensor or None"
            raise TypeError(msg)
    return dict(returned)


def refuse_other_than_grads(method: str, returned: object) -> None:
    """Raise ``TypeError`` if a backward returned neither a tuple nor a list of gradients."""
    if not isinstance(returned, (tuple, list)):
        each = "parameter" if method == "backward_weight()" else "argument"
        msg = f"{method} returned {_form(returned)}, expected a tuple of one gradient or None per {each}"
        raise TypeError(msg)


def _form(value: object) -> str:
    """Return the type of a wrong value in words."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
