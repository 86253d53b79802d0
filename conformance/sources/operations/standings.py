"""The state of each operation in a report: the worst finding of its checks on all devices and in all dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from gradconform.contract.extra_ids import OPERATIONS, name_in_id
from gradconform.coverage import MISCOPIED, NOTHING, WITHHELD
from gradconform.results import Report, Result

#: Causes that name one operation first and its arguments after it.
OF_ONE = {"operation_wrong", "layout_ignored", "layout_dependent", "slope_wrong", "rows_mixed"}
_KINDS = {*OF_ONE, "operation_of_its_own", "operation_draws"}


#: From worst to best. ``rounding``: the excess over the rule is below :data:`_LITTLE` times its bound. ``unsupported``:
#: plain autograd raises. ``not judged``: an error of the adapter, the kit or the environment. ``withheld``: a skip list
#: names it.
Standing = Literal[
    "wrong", "crashed", "hung", "rounding", "not judged", "unsupported", "withheld", "not claimed", "partly on the CPU",
    "right",
]  # fmt: skip
STANDINGS: tuple[Standing, ...] = get_args(Standing)

_LITTLE = 16.0


def standings(report: Report) -> dict[str, tuple[Standing, Result]]:
    """Return the state of each tested operation by name, with the result that shows it."""
    return {name: _worst(several) for name, several in _by_operation(report).items()}


def standings_by_place(report: Report) -> dict[str, dict[tuple[str, str], tuple[Standing, Result]]]:
    """Return the states by device type and dtype; all indices of a device type count together."""
    found = {}
    for name, several in _by_operation(report).items():
        places: dict[tuple[str, str], list[Result]] = {}
        for result in several:
            places.setdefault((result.device.partition(":")[0], result.dtype), []).append(result)
        found[name] = {place: _worst(there) for place, there in places.items()}
    return found


def _by_operation(report: Report) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in report:
        name = name_in_id(result.check, OPERATIONS)
        if name is not None and result.status != "not_run" and result.kind != NOTHING:
            found.setdefault(name, []).append(result)
    return found


def _worst(several: list[Result]) -> tuple[Standing, Result]:
    return min(((_standing(one), one) for one in several), key=lambda found: STANDINGS.index(found[0]))


def described(name: str, standing: Standing, result: Result) -> str:
    """Return an operation's name; if it is wrong, also the dispatcher's operation, the sample and the error."""
    inner = how_wrong(result) if standing in {"wrong", "rounding"} else ""
    return f"{name} ({inner})" if inner else name


def how_wrong(result: Result) -> str:
    """Return which dispatcher operation is wrong, on which sample and by how much; empty if unknown."""
    if not result.findings:
        return ""
    finding = result.findings[0]
    return ", ".join(filter(None, [_kernel(finding), _sample(finding), _size(finding)]))


def _standing(result: Result) -> Standing:
    if result.ended is not None or result.kind in {"crash", "hang"}:
        return "hung" if "hang" in {result.ended, result.kind} else "crashed"
    if result.kind == MISCOPIED:
        return "not judged"
    if result.status == "unsupported":
        return "withheld" if result.kind == WITHHELD else "not claimed" if result.unclaimed else "unsupported"
    if result.status in {"failed", "waived"} or (result.status, result.kind) == ("error", "device"):
        little = [f["kind"] == "mismatch" and (f["headroom"] or 0.0) <= _LITTLE for f in result.findings]
        return "rounding" if little and all(little) else "wrong"
    if result.status == "error":
        return "not judged"
    return "partly on the CPU" if result.off_device_share else "right"


def _kernel(finding: Mapping[str, Any]) -> str:
    cause = finding["cause"] or {"kind": None}
    given = f" of {cause['names'][1]}" if cause["kind"] == "operation_wrong" else ""
    return " or ".join(operations_in(cause)) + given


def _sample(finding: Mapping[str, Any]) -> str:
    needs = finding["needs"]
    return f"sample {needs['sample']}" if isinstance(needs, Mapping) and "sample" in needs else ""


def _size(finding: Mapping[str, Any]) -> str:
    error, bound = finding["error"], finding["bound"]
    if not (isinstance(error, float) and isinstance(bound, float)):
        return str(finding["kind"]).replace("_", " ")
    return f"error {error:.3g}, bound {bound:.3g}"


def operations_in(cause: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the operation names in a cause; an operation that is wrong alone is followed by its arguments."""
    if cause["kind"] not in _KINDS:
        return ()
    names = tuple(map(str, cause.get("names", ())))
    return names[:1] if cause["kind"] in OF_ONE else names
