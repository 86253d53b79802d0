"""A report's unreliable operations as a Python file that torch's own device tests can read."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from gradconform.devices.names import DTYPE_NAMES
from gradconform.results import Report, Result
from gradconform.sources.operations.standings import Standing, how_wrong, standings_by_place
from gradconform.text.escaping import in_docstring, printable

from .sentences import title

_LISTED: tuple[Standing, ...] = ("wrong", "crashed", "hung", "rounding", "unsupported", "withheld")
#: The most letters of a reason.
_LONGEST = 200

_FILE = '''"""Operations that are wrong, crash, hang or are unsupported on {devices}.

Written by gradconform {kit} from a report of {title}
with torch {torch}, profile {profile}. Errors of rounding may be within the tolerances of torch's tests.

An entry skips every test of its operation in its dtypes. The class and the name of a test in place of the two None skip
that one alone; then gradconform leaves the operation out only where the test is TestBwdGradients.test_fn_grad.

Torch's own tests without these, from a checkout of torch:

    PYTORCH_TESTING_DEVICE_ONLY_FOR={devices} python skips.py test/test_ops.py

Tests of your own, before instantiate_device_type_tests: skips.apply(op_db). All tests of a backend out of the tree,
from torch 2.13 on: PrivateUse1TestBase.set_test_configs(op_overrides=skips.OP_OVERRIDES).

To run gradconform without them: gradconform device {devices} --skip-operations skips.py
"""

import runpy
import sys
import unittest

import torch
from torch.testing._internal.opinfo.core import DecorateInfo

#: By what torch's tests call an operation or a module.
OP_OVERRIDES = {{
{entries}}}


def apply(infos):
    """Add the entries to those of operations or modules: of op_db, or of module_db."""
    for info in infos:
        info.decorators = (*info.decorators, *OP_OVERRIDES.get(getattr(info, "full_name", info.name), ()))


if __name__ == "__main__":
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    apply([*op_db, *module_db])
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
'''


@dataclass(frozen=True, slots=True)
class _Entry:
    device_type: str
    reason: str
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        dtypes = ", ".join(f"torch.{dtype}" for dtype in self.dtypes)
        several = f"({dtypes})" if len(self.dtypes) > 1 else f"({dtypes},)"
        where = f"None, None, device_type={_literal(self.device_type)}, dtypes={several}"
        return f"DecorateInfo(unittest.skip({_literal(self.reason)}), {where}),"


def skip_list(report: Report) -> str:
    """Return the file: an entry per operation, device type and reason, with the dtypes that it covers."""
    values = {
        "devices": ",".join(dict.fromkeys(result.device.partition(":")[0] for result in report)),
        "kit": report.kit,
        "title": title(report),
        "torch": str(report.environment.get("torch")),
        "profile": report.profile,
    }
    reported = "".join(_text(name, several) for name, several in sorted(_listed(report).items()))
    return _FILE.format(**{name: in_docstring(text) for name, text in values.items()}, entries=reported)


def _text(name: str, several: Iterable[_Entry]) -> str:
    lines = "".join(f"        {one}\n" for one in several)
    return f"    {_literal(name)}: [\n{lines}    ],\n"


def _literal(text: str) -> str:
    """Return a Python string literal, in JSON's form if every character is printable."""
    return json.dumps(printable(text), ensure_ascii=False)


def _listed(report: Report) -> dict[str, list[_Entry]]:
    """Return the entries by the operation's name in torch's tests."""
    found: dict[str, list[_Entry]] = {}
    for name, places in standings_by_place(report).items():
        reasons: dict[tuple[str, Standing], tuple[str, list[str]]] = {}
        for (device_type, dtype), (standing, result) in places.items():
            own = _dtype_of(name, dtype) if standing in _LISTED and dtype in DTYPE_NAMES else None
            if own is not None:
                _, dtypes = reasons.setdefault((device_type, standing), (_reason(standing, result), []))
                dtypes.append(own)
        if reasons:
            found[_full_name(name)] = [
                _Entry(device_type, reason, tuple(dict.fromkeys(dtypes)))
                for (device_type, _), (reason, dtypes) in reasons.items()
            ]
    return found


def _reason(standing: Standing, result: Result) -> str:
    first = next(filter(None, map(str.strip, result.message.splitlines())), "")
    if standing == "withheld":  # the skip list that was read has the reason
        return _short(first.partition(": ")[2])
    detail = how_wrong(result) if standing in {"wrong", "rounding"} else first
    return _short(f"{standing}: {detail}" if detail else standing)


def _short(text: str) -> str:
    return textwrap.shorten(text, _LONGEST, placeholder=" …")


def _full_name(name: str) -> str:
    """Return an operation's name in torch's tests; the kit's name if the installed torch lacks it."""
    from gradconform.fixtures.operations.entries import entries  # noqa: PLC0415 (it imports torch)

    with contextlib.suppress(ImportError, KeyError):
        return entries()[name].full_name
    return name


def _dtype_of(name: str, dtype: str) -> str | None:
    """Return the dtype of an operation's samples in a run in ``dtype``; for a few operations, the complex one.

    None if the operation supports neither dtype anywhere, so the device is not the reason.
    """
    import torch  # noqa: PLC0415 (it is slow to import)

    from gradconform.fixtures.operations.entries import entries  # noqa: PLC0415 (as above)

    with contextlib.suppress(ImportError, KeyError):
        entry = entries()[name]
        own = entry.dtype_for(getattr(torch, dtype))
        return str(own).removeprefix("torch.") if own in entry.dtypes else None
    return dtype
