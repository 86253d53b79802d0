"""The comparisons of a replay script between an implementation and plain autograd.

A script defines PROGRAM, COMPARED, LANES and TOLERANCE itself, as gradconform.replay.standalone describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradconform.drive.observation import AS_BEFORE
from gradconform.tolerance import gone_through

if TYPE_CHECKING:
    MAY_REFUSE = FIRST_UNREAD = False
    TOLERANCE = 0.0
    LANES: list[int]
    COMPARED: set[str]

#: The observations after one action: its token, its exception, and the values by kind and name.
Step = dict[str, Any]
#: Values that no arithmetic changes, and work that an implementation may skip although plain autograd does it.
EXACT = {"argument", "output gradient", "parameter", "the generator's state"}
ALLOWED = {
    "moved to other storage: the gradient of",
    "requires_grad of the gradient of input",
    "requires_grad of what accumulates:",
    "shared with a stored gradient:",
    "shared with a returned gradient:",
    "changed later:",
}


def copy(value: Any) -> Any:
    """Return a copy of a tensor's current values, or of all values in a dict."""
    if isinstance(value, dict):
        return {name: copy(one) for name, one in value.items()}
    return value.detach().to_dense().cpu().clone() if isinstance(value, Tensor) else value


def same(got: Any, expected: Any, tolerance: float) -> bool:
    """Return whether two observations are equal; numbers may differ by ``tolerance`` of the largest."""
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
        return not isinstance(got, Tensor) and not isinstance(expected, Tensor) and bool(got == expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    got, expected = got.detach().to_dense(), expected.detach().to_dense()
    if not (got.is_floating_point() or got.is_complex()):
        return torch.equal(got, expected)
    finite = expected[torch.isfinite(expected)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    near = torch.allclose(got, expected, rtol=0.0, atol=tolerance * scale, equal_nan=True)
    return near and gone_through(got, expected) is None


def differences(plain: list[Step], tried: list[Step]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each compared observation that is wrong: its name, the expected value and the actual one."""
    for number, (expected, got) in enumerate(zip(plain, tried, strict=True)):
        token = got["token"]
        if got["lane"] not in LANES:
            continue
        if got["misuse"]:
            yield from refusal(got)
        elif got["raised"] is not None:
            if not MAY_REFUSE or "W" in token:
                yield f"{token} runs", "no error", f"raises {got['raised']}"
                continue
            expected = tried[number - 1]  # noqa: PLW2901 (a refusal changes nothing)
        for what in sorted(COMPARED & got.keys()) if not token.endswith("finish!") else ():
            if FIRST_UNREAD and got["lane"] == 0 and what.endswith("the gradient of input"):
                continue
            for name in {**({} if "given to" in what else expected.get(what, {})), **got[what]}:
                value, allowed = got[what].get(name, 0), wanted(what, name, expected, plain[number:])
                unjudged = (got["misuse"] and what.endswith("of input")) or (what in ALLOWED and not value)
                if allowed and not unjudged and not any(same(value, one, tolerance) for one, tolerance in allowed):
                    called = f"{what} {worded(name) if isinstance(name, tuple) else name}"
                    yield f"{called} after {token}", allowed[0][0], value


def refusal(got: Step) -> Iterator[tuple[str, Any, Any]]:
    """Yield a misuse that raised no error although one is required."""
    if got["raised"] is None and "refusal" in COMPARED:
        yield f"{got['token']} raises", "an error", "none"
    for slot, grad in got.get("the gradient of input", {}).items() if "refusal or nothing" in COMPARED else ():
        if grad is not None:
            yield f"{got['token']} raises, or returns nothing for input {slot}", None, grad


def wanted(what: str, name: Any, step: Step, later: list[Step]) -> list[tuple[Any, float]]:
    """Return the allowed values with their tolerances; none if any value is allowed."""
    if what == ".grad of input":
        return [(grads[name], TOLERANCE), (None, 0.0)] if (grads := step.get("the gradient of input")) else []
    if what.startswith("the gradient given to"):  # if autograd calls no hook, its next call counts
        calls: dict[Any, Any] = next((one[what] for one in later if (name[0], 0) in one.get(what, {})), {})
        return [(calls[name], 0.05)] if name in calls else []
    if what == "what W returns for":
        added = step.get("added by W to", {})
        return [(step[what].get(name, 0), TOLERANCE), *([(added[name], 0.05)] if name in added else [])]
    found = step.get(what, {}).get(name, False if what in ALLOWED else 0)
    if what == "what the process is set to:":  # plain autograd may be the first to import a library
        return [(found, 0.0), (AS_BEFORE, 0.0)]
    return [(found, 0.0 if what in EXACT else TOLERANCE)]


def worded(name: tuple[Any, Any]) -> str:
    """Return the name of two tensors that share storage, or of a hook and its call."""
    return f"{name[0]}, call {name[1] + 1}," if isinstance(name[1], int) else " and ".join(name)


def other_bits(first: list[Step], again: list[Step]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the gradients whose bits differ in another run."""
    for one, other in zip(first, again, strict=True):
        for what in ("the gradient of input", "the gradient of"):
            for name, value in one.get(what, {}).items():
                got = other.get(what, {}).get(name)
                if not same(got, value, 0.0):
                    yield f"{what} {name} after {one['token']}, in another run", value, got


def worst(expected: Any, got: Any) -> int:
    """Return the index of the element in which two tensors of one shape differ most; 0 for anything else."""
    if (
        not isinstance(got, Tensor)
        or not isinstance(expected, Tensor)
        or got.shape != expected.shape
        or not got.numel()
    ):
        return 0
    difference = (got.to(torch.complex128) - expected).abs().nan_to_num(torch.inf)
    difference[(got == expected) | (got.isnan() & expected.isnan())] = 0
    return int(difference.argmax())


def excerpt(value: Any, place: int) -> str:
    """Return the elements of a tensor around one element; any other value is returned unchanged."""
    if not isinstance(value, Tensor):
        return str(value)
    around = value.flatten()[max(place - 2, 0) : place + 3].tolist()
    return f"{around} around element {place} of {list(value.shape)}, {value.dtype}"
