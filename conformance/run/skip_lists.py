"""Reads files of operations to skip in a run, in the form of torch's own device tests, or in a plain form.

A Python file has variables that map names of operations to lists of ``DecorateInfo``, as ``op_overrides`` of torch's
classes of device tests do. Or it has lists of ``skip(…)`` and ``xfail(…)``, as ``skipOps`` takes them. A dtype may
replace a ``DecorateInfo``, and an empty value may replace a list, for all dtypes and devices. A JSON file has one
mapping to lists of dtype names.
"""

from __future__ import annotations

import contextlib
import json
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradconform.contract.extra_ids import OPERATIONS, name_in_id
from gradconform.contract.plan import Item
from gradconform.coverage import WITHHELD
from gradconform.devices.dtypes import dtype_named
from gradconform.fixtures.operations.entries import entries, short_name
from gradconform.results import Place, Result
from gradconform.torch_releases.operators import GRADIENT_TESTS, process_kept, skipped_by
from gradconform.torch_releases.private_use import is_private_use
from gradconform.user_input.values import SelectionError

_EXPECTED = (
    "expected a list of torch's skip(…) and xfail(…), or a mapping from operation names to lists of DecorateInfo or "
    "dtypes, as 'gradconform report --skip-list' writes"
)
#: How many unknown names a message lists.
_NAMED = 3
#: The number of parts in the result of torch's ``skip`` and ``xfail``.
_PARTS = 5

#: Returns why a line of a list skips an operation on a type of device in a dtype; None if it does not.
Line = Callable[[str, torch.dtype], str | None]


class SkipListError(SelectionError):
    """A file of operations to skip cannot be read; the message names it and the expected form."""


@dataclass(frozen=True, slots=True)
class SkipList:
    """The lines of a file, by the kit's name of the operation."""

    file: str
    lines: Mapping[str, Sequence[Line]]

    def reason(self, name: str, device_type: str, dtype: torch.dtype) -> str | None:
        """Return why an operation is skipped, or None if it is not."""
        found = (line(device_type, dtype) for line in self.lines.get(name, ()))
        return next((self.reason_of(why) for why in found if why is not None), None)

    def reason_of(self, why: str) -> str:
        """Return the reason text for the operations that a line skips."""
        return f"withheld by {self.file}: {why}"


@dataclass(frozen=True, slots=True)
class Withheld:
    """The skipped items of a run: the reason, by place; ``description`` reports it before anything runs."""

    reasons: Mapping[Place, str]
    description: tuple[str, ...]

    def result(self, item: Item) -> Result | None:
        """Return the result of an item that is skipped, or None for one that is run."""
        why = self.reasons.get(item.place)
        if why is None:
            return None
        return item.check.result(item.device, item.dtype, status="unsupported", kind=WITHHELD, message=why)


def withheld_from(items: Iterable[Item], files: Sequence[str]) -> Withheld:
    """Return the ``items`` that the files skip.

    Raises :class:`SkipListError` for a file that cannot be read, and for files if no item tests an operation.
    """
    if not files:
        return Withheld({}, ())
    lists = [read_skip_list(file) for file in files]
    of_operations = {item.place: name for item in items if (name := name_in_id(item.check.id, OPERATIONS)) is not None}
    if not of_operations:
        msg = f"--skip-operations {files[0]}: no operation is selected; select some with --operation NAME, or all"
        raise SkipListError(msg)
    reasons: dict[Place, str] = {}
    for place, name in of_operations.items():
        dtype = entries()[name].dtype_for(dtype_named(place.dtype))
        device_type = place.device.partition(":")[0]
        found = filter(None, (one.reason(name, device_type, dtype) for one in lists))
        why = next(found, None)
        if why is not None:
            reasons[place] = why
    return Withheld(reasons, tuple(_described(one, of_operations, reasons) for one in lists))


def _described(one: SkipList, of_operations: Mapping[Place, str], reasons: Mapping[Place, str]) -> str:
    prefix = one.reason_of("")
    names = {of_operations[place] for place, why in reasons.items() if why.startswith(prefix)}
    reported = f"{prefix}{len(names)} of {len({*of_operations.values()})} operations"
    unknown = sorted(one.lines.keys() - entries().keys())
    if not unknown:
        return reported
    some = f"{', '.join(unknown[:_NAMED])}{', …' if len(unknown) > _NAMED else ''}"
    return f"{reported}; names that torch does not list as differentiable: {len(unknown)}, {some}"


def read_skip_list(file: str) -> SkipList:
    """Return the content of a file; raise :class:`SkipListError` if it has no readable entry."""
    path = Path(file)
    if not path.is_file():
        msg = f"--skip-operations {file}: the file does not exist; {_EXPECTED}"
        raise SkipListError(msg)
    found = _lists(_values(path, file))
    if not found:
        msg = f"--skip-operations {file}: the file contains no list of operations; {_EXPECTED}"
        raise SkipListError(msg)
    lines: dict[str, list[Line]] = {}
    for where, several in found.items():
        for name, given in several.items():
            of_name = _lines(given, f"--skip-operations {file}: {where}[{name!r}]")
            lines.setdefault(short_name(name), []).extend(of_name)
    return SkipList(file, lines)


def _values(path: Path, file: str) -> Mapping[str, Any]:
    """Return the values of a file, by their names in it."""
    try:
        if path.suffix == ".json":
            return {"the file": json.loads(path.read_text(encoding="utf-8"))}
        with process_kept():
            return runpy.run_path(str(path), run_name=path.stem)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is a program: SystemExit is one way for it to fail
        msg = f"--skip-operations {file}: reading it raised {type(error).__name__}: {error}; {_EXPECTED}"
        raise SkipListError(msg) from error


def _lists(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return each list by its variable name, and in it by the operation's; a list with several names appears once."""
    lists: dict[str, Mapping[str, Any]] = {}
    for where, value in {id(value): (where, value) for where, value in values.items() if where[:1] != "_"}.values():
        if isinstance(value, Mapping) and _names_operations(value):
            lists[where] = value
        elif isinstance(value, (list, tuple)) and value and all(map(_is_spec, value)):
            lists[where] = of_name = dict[str, list[_Spec]]()
            for name, variant, device_type, dtypes, _ in value:
                full_name = ".".join(filter(None, (name, variant)))
                of_name.setdefault(full_name, []).append(_Spec(device_type, dtypes))
    return lists


def _names_operations(value: Mapping[Any, Any]) -> bool:
    several = (list, tuple, set, frozenset, type(None))
    return all(isinstance(name, str) and isinstance(given, several) for name, given in value.items())


def _is_spec(one: Any) -> bool:
    """Return whether it is a result of torch's ``skip`` and ``xfail``: names, a type of device, dtypes, and which."""
    return isinstance(one, tuple) and len(one) == _PARTS and all(isinstance(part, str) for part in one[:2])


@dataclass(frozen=True, slots=True)
class _Spec:
    """The type of device and the dtypes of a line, None for any."""

    device_type: str | None = None
    dtypes: Sequence[torch.dtype] | None = None

    def __call__(self, device_type: str, dtype: torch.dtype) -> str | None:
        of_device = self.device_type is None or self.device_type in _names_of(device_type)
        return "listed" if of_device and (self.dtypes is None or dtype in self.dtypes) else None


def _lines(given: Any, where: str) -> Iterator[Line]:
    if not given:
        yield _Spec()
    for one in given or ():
        if isinstance(one, _Spec):
            yield one
        elif hasattr(one, "is_active") and hasattr(one, "decorators"):
            why = skipped_by(one.decorators)
            if why is not None:
                yield _decorated(one, why)
        elif isinstance(one, (str, torch.dtype)):
            yield _Spec(dtypes=(_dtype(one, where),))
        else:
            msg = f"{where}: expected a DecorateInfo or a dtype, such as torch.float32; got {one!r}"
            raise SkipListError(msg)


def _decorated(info: Any, why: str) -> Line:
    """Return the line of a ``DecorateInfo``: it skips the operations skipped in torch's own tests of gradients."""

    def line(device_type: str, dtype: torch.dtype) -> str | None:
        names = _names_of(device_type)
        tests = ((*test, name) for test in GRADIENT_TESTS for name in names)
        with contextlib.suppress(LookupError):  # one that decides by parameters of a test
            return why if any(info.is_active(*test, dtype, {}) for test in tests) else None
        return None

    return line


def _dtype(given: str | torch.dtype, where: str) -> torch.dtype:
    found = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        msg = f"{where}: expected a dtype of torch, such as 'float32'; got {given!r}"
        raise SkipListError(msg)
    return found


def _names_of(device_type: str) -> tuple[str, ...]:
    """Return the names of a type of device in torch's tests."""
    return (device_type, "privateuse1") if is_private_use(device_type) else (device_type,)
