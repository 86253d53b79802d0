"""The faults of training steps by name: wrong runtimes with one mistake each, and the checks that must catch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession, idea_of
from gradconform.runtime import StepSpec


@dataclass(frozen=True, slots=True)
class StepFault:
    """A wrong runtime: its mistake, the check that must catch it, and the kind of cause that must be reported.

    The check is one of profile quick, or the first with these values in its row. The kind is empty if results do not
    show a cause, as after other forwards or other roundings.
    """

    name: str
    what: str
    check: str
    cause: str
    session: type[PlainSession]

    @property
    def claims(self) -> Mapping[str, str]:
        """The values that it does not claim: none."""
        return {}

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> PlainSession:
        """Return a wrong session."""
        return self.session(stages, spec)


#: Every fault by name.
STEP_FAULTS: dict[str, StepFault] = {}


def fault(check: str, cause: str = "") -> Callable[[type[PlainSession]], type[PlainSession]]:
    """Register a session as a fault that a check must catch; its docstring describes the mistake."""

    def add(session: type[PlainSession]) -> type[PlainSession]:
        name, what = idea_of(session)
        STEP_FAULTS[name] = StepFault(name, what, check, cause, session)
        return session

    return add


def each(session: PlainSession, change: Callable[[str, Tensor], Tensor | None]) -> None:
    """Change every gradient of a session."""
    for name, parameter in session.trained():
        if parameter.grad is not None:
            parameter.grad = change(name, parameter.grad)
