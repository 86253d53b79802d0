"""torch's own lists of what is differentiable: one entry per operation, and one per module, with samples of each.

torch's tests are made of them. They are no public interface and may change or go; where they do, operations cannot be
judged one by one, and all else can.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from typing import Any

from .names import Name

_NEEDED = "lists the operations that --operation judges"

OPERATIONS = Name("torch.testing._internal.common_methods_invocations", ("op_db",), _NEEDED)
MODULES = Name("torch.testing._internal.common_modules", ("module_db",), _NEEDED)

#: What torch's tests do to a whole process as soon as they are imported: flags of backends can be set no more, and
#: calls of scripted functions are counted. Where one is gone, nothing has to be put back.
_FREEZE = Name("torch:backends", ("disable_global_flags",), "is put off")
_CALLS = tuple(Name(f"torch:_C.{kind}", ("__call__",), "is put back") for kind in ("ScriptFunction", "ScriptMethod"))


@lru_cache(maxsize=1)
def listed() -> tuple[list[Any], list[Any]]:
    """Return torch's lists of operations and of modules; the process is as it was.

    Raises :class:`~gradconform.torch_releases.names.UnavailableError` where this torch has none.
    """
    changed = [(one, one.find()) for one in (_FREEZE, *_CALLS) if one.there()]
    variables = dict(os.environ)
    try:
        if _FREEZE.there():
            setattr(_FREEZE.home(), _FREEZE.spellings[0], lambda: None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(OPERATIONS.find()), list(MODULES.find())
    finally:
        for name, value in changed:
            setattr(name.home(), name.spellings[0], value)
        os.environ.clear()
        os.environ.update(variables)
