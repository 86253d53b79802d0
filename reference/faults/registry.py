"""The registry of faults: deliberately wrong implementations, each with the checks one would name for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from gradconform.target.resolve import Target

#: A cause as a report has it: its kind alone, or its kind with other fields that are certain.
Cause = str | Mapping[str, Any]

#: What a device may not have: addresses and strides of its tensors, or numbers below the smallest normal one.
ShowsBy = Literal["memory", "denormals"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong idea.

    ``topic`` is the module it stands in, ``idea`` says in one sentence what it does wrong, ``named`` are globs over the
    ids of the checks one would name for it: all that they match must fail, of the rows of the space at least one.
    ``raises`` says that it may show by an exception that plain autograd does not raise. ``make`` returns a new target.
    ``causes`` are those of which one is to be found for a fault of values, with the fields that a report has for them;
    empty where it cannot be named.
    ``dtypes`` are those in which it is a fault, None for all, and ``elsewhere`` says why it is none in the others: an
    error of 1e-5 is lost in bfloat16. ``dimension`` is that of the space (docs/space.md) to which it belongs: of
    its rows only such as have one of ``values`` show it. ``shows_by`` says what of a device it shows by, beside values.
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
        """Tell whether the check with this id is one that must fail."""
        return any(fnmatchcase(check, pattern) for pattern in self.named)


#: Every fault by name, in order of registration.
FAULTS: dict[str, Fault] = {}


def fault(  # noqa: PLR0913 (what a fault is said to be)
    *named: str,
    raises: bool = False,
    cause: Cause | tuple[Cause, ...] = (),
    dtypes: tuple[str, ...] | None = None,
    elsewhere: str | None = None,
    takes: str | None = None,
    shows_by: ShowsBy | None = None,
) -> Callable[[Callable[[], Target]], Callable[[], Target]]:
    """Register what makes a wrong target; its name is the fault's, its docstring the idea.

    ``cause`` is a cause, or several of which one is enough. ``takes`` is the dimension to which it belongs, with the
    values that show it: ``mode=thread``, ``order=lagging mixed``. ``shows_by`` is what of a device it shows by.
    Raises ``ValueError`` for a name that is taken, where no check is named, and for dtypes left out without a reason.
    """
    several = cause if isinstance(cause, tuple) else (cause,)
    causes = tuple({"kind": one} if isinstance(one, str) else one for one in several)
    dimension, _, values = (takes or "").partition("=")

    def register(make: Callable[[], Target]) -> Callable[[], Target]:
        name = re.sub(r"_|(?<=\w)(?=[A-Z])", "-", make.__name__).lower()
        idea = re.sub(r"\s+", " ", make.__doc__ or "").strip()
        if name in FAULTS or not named or not idea:
            msg = f"fault {name!r} needs a name of its own, an idea in its docstring, and the checks one would name"
            raise ValueError(msg)
        if (dtypes is None) != (elsewhere is None):
            msg = f"fault {name!r}: dtypes={dtypes} and elsewhere={elsewhere!r}; expected both, or neither"
            raise ValueError(msg)
        topic = make.__module__.rpartition(".")[2]
        place = (dimension or None, tuple(values.split()))
        FAULTS[name] = Fault(name, topic, idea, named, raises, make, causes, dtypes, elsewhere, *place, shows_by)
        return make

    return register
