"""A mode that sees each dispatched operation: torch documents it as the extension point, under a private name."""

from __future__ import annotations

import sys
from typing import Any

from .names import Name

__all__ = ["Called", "DispatchMode"]

MODE = Name("torch.utils._python_dispatch", ("TorchDispatchMode",), "sees each operation as it is dispatched")

if MODE.there():
    from torch.utils._python_dispatch import TorchDispatchMode

    class DispatchMode(TorchDispatchMode):
        """Torch's mode without the import of torch._dynamo at the first operation, which takes a second.

        Torch makes torch._dynamo skip each mode. If torch._dynamo was not imported, there is nothing to skip.
        """

        def __init_subclass__(cls, **kwargs: Any) -> None:
            """Call the mode's own function while torch._dynamo is not imported."""
            own: Any = cls.__dict__.get("__torch_dispatch__")
            super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call] # torch has no types here
            skipped: Any = cls.__dict__.get("__torch_dispatch__")
            if own is None or own is skipped:
                return

            def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen = skipped if "torch._dynamo" in sys.modules else own
                return seen(self, func, types, args, kwargs)

            cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign] # as torch assigns it

else:

    class DispatchMode:  # type: ignore[no-redef] # the same name, of a torch that has none
        """An unavailable mode."""

        def __init__(self, *_: Any) -> None:
            """Raise :class:`~gradconform.torch_releases.names.UnavailableError`."""
            raise MODE.unavailable()


class Called(DispatchMode):
    """Records each operation that is called, an overload of torch's dispatcher, once and in order."""

    def __init__(self) -> None:
        """Create an empty record."""
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self.operations: dict[Any, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        del types
        self.operations[func] = None
        return func(*args, **(kwargs or {}))
