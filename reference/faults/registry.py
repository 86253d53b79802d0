"""The registry of faults: deliberately wrong implementations, each with the checks that must catch it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from gradconform.target.resolve import Target

#: A cause of a report: its kind, or its kind with other fields that are certain.
Cause = str | Mapping[str, Any]

#: Features that a device may lack: addresses and strides of its tensors, or subnormal numbers.
ShowsBy = Literal["memory", "denormals"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A deliberately wrong implementation with one mistake.

    ``topic`` is its module, and ``idea`` describes the mistake in one sentence. ``named`` are globs over the ids of the
    checks that must catch it. Every check that they match must fail; of the rows of the space, one must.
    ``raises`` means that it may raise an exception that plain autograd does not raise. ``make`` returns a new target.

    ``causes`` are the possible causes of its wrong values, with their fields in a report. One of them must be found. It
    is empty if no cause can be named. ``dtypes`` are the dtypes in which it is wrong, None for all. ``elsewhere`` is
    the reason why it is right in the others: an error of 1e-5 is lost in bfloat16. ``dimension`` is its dimension of
    the space (docs/space.md), and only rows with one of ``values`` show it. ``shows_by`` is the feature of a device
    that it needs in addition to values.
    """

    name: str
    topic: str
    idea: str
    named: tuple[str, ...]
    raises: bool
    make: Callable[[], Target]
    causes: tuple[Mapping[str, Any], ...] = ()
    dtypes: tuple[str, ...] | None = None
    elsewhere: str | None = None
    dimension: str | None = None
    values: tuple[str, ...] = ()
    shows_by: ShowsBy | None = None

    def names(self, check: str) -> bool:
        """Return whether the check with this id must fail."""
        return any(fnmatchcase(check, pattern) for pattern in self.named)


#: Every fault by name, in order of registration.
FAULTS: dict[str, Fault] = {}


def fault(  # noqa: PLR0913 (the fields of a fault)
    *named: str,
    raises: bool = False,
    cause: Cause | tuple[Cause, ...] = (),
    dtypes: tuple[str, ...] | None = None,
    elsewhere: str | None = None,
    takes: str | None = None,
    shows_by: ShowsBy | None = None,
) -> Callable[[Callable[[], Target]], Callable[[], Target]]:
    """Return a decorator that registers a function as a fault: it returns a new target, and its docstring is the idea.

    The fault has the function's name. ``cause`` is a cause, or several of which one is enough. ``takes`` is the
    dimension with the values that show it: ``mode=thread``, ``order=lagging mixed``. ``shows_by`` is the feature of a
    device that it needs. Raises ``ValueError`` for a used name, without a named check, and for dtypes without a reason.
    """
    several = cause if isinstance(cause, tuple) else (cause,)
    causes = tuple({"kind": one} if isinstance(one, str) else one for one in several)
    dimension, _, values = (takes or "").partition("=")

    def register(make: Callable[[], Target]) -> Callable[[], Target]:
        name = re.sub(r"_|(?<=\w)(?=[A-Z])", "-", make.__name__).lower()
        idea = re.sub(r"\s+", " ", make.__doc__ or "").strip()
        if name in FAULTS or not named or not idea:
            msg = f"fault {name!r} requires an unused name, an idea in its docstring, and the checks that must catch it"
            raise ValueError(msg)
        if (dtypes is None) != (elsewhere is None):
            msg = f"fault {name!r}: dtypes={dtypes} and elsewhere={elsewhere!r}; expected both, or neither"
            raise ValueError(msg)
        topic = make.__module__.rpartition(".")[2]
        place = (dimension or None, tuple(values.split()))
        FAULTS[name] = Fault(name, topic, idea, named, raises, make, causes, dtypes, elsewhere, *place, shows_by)
        return make

    return register
