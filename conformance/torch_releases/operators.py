"""Torch's own lists of differentiable operations and modules: one entry for each, with samples.

Torch's tests are built from them. They are no public interface and may change or disappear. Without them, operations
cannot be judged one by one; all else can.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from .names import Name

_NEEDED = "lists the operations that --operation judges"

OPERATIONS = Name("torch.testing._internal.common_methods_invocations", ("op_db",), _NEEDED)
MODULES = Name("torch.testing._internal.common_modules", ("module_db",), _NEEDED)

_FREEZE = Name("torch:backends", ("disable_global_flags",), "is put off")
#: Changes to the whole process when torch's tests are imported: backend flags become fixed, and calls of scripted
#: functions are counted. If a name is gone, nothing has to be restored.
CHANGED = (
    _FREEZE,
    *(Name(f"torch:_C.{kind}", ("__call__",), "is put back") for kind in ("ScriptFunction", "ScriptMethod")),
)


#: The class and the name of the torch tests that require gradients of operations and of modules.
GRADIENT_TESTS = (("TestBwdGradients", "test_fn_grad"), ("TestModule", "test_grad"))


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Restore the process after torch's tests are imported, and drop torch's warnings and logs meanwhile.

    The log has the warning of CUDA builds on a machine with nvcc and no GPU.
    """
    changed = [(one, one.find()) for one in CHANGED if one.there()]
    variables = dict(os.environ)
    log = logging.getLogger("torch.utils.cpp_extension")
    level = log.level
    try:
        log.setLevel(logging.ERROR)
        if _FREEZE.there():
            setattr(_FREEZE.home(), _FREEZE.spellings[0], lambda: None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
        for name, value in changed:
            setattr(name.home(), name.spellings[0], value)
        os.environ.clear()
        os.environ.update(variables)


@lru_cache(maxsize=1)
def listed() -> tuple[list[Any], list[Any]]:
    """Return torch's lists of operations and of modules; the process state is restored.

    Raises :class:`~gradconform.torch_releases.names.UnavailableError` if this torch has none.
    """
    with process_kept():
        return list(OPERATIONS.find()), list(MODULES.find())


def skipped_by(decorators: Iterable[Callable[[Any], Any]]) -> str | None:
    """Return why decorators skip a test, or expect it to fail; None if they do neither.

    They are applied to a test function: one may set a tolerance, or decide only when the test runs.
    """
    for decorator in decorators:
        with contextlib.suppress(Exception):  # a decorator for other tests
            marked = decorator(lambda _: None)
            if getattr(marked, "__unittest_skip__", False):
                return str(marked.__unittest_skip_why__)
            if getattr(marked, "__unittest_expecting_failure__", False):
                return "expected to fail"
    return None
