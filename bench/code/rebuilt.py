"""How a rebuild becomes a target: a runtime of a session class, and an adapter of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from gradconform.adapter import Session, StageSpec
from gradconform.runtime import RuntimeSession, StepSpec


class StepTarget:
    """A runtime whose ``session`` is opened on the stages of a rank; it claims what ``claims`` say."""

    def __init__(self, session: Callable[[Mapping[int, nn.Module], StepSpec], RuntimeSession], **claims: str) -> None:
        """Keep both; the name is that of the session."""
        self.session, self.claims = session, claims
        self.name = getattr(session, "__name__", repr(session))

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> RuntimeSession:
        """Return the session of this rank."""
        return self.session(stages, spec)


class StageTarget:
    """An adapter whose ``session`` is opened on a stage; it withholds what ``withheld`` names."""

    def __init__(
        self, name: str, session: Callable[[nn.Module, StageSpec], Session], withheld: str = "", **claims: Any
    ) -> None:
        """Keep the session; ``claims`` are made as they stand."""
        self.name, self.session = name, session
        self.capabilities = dict.fromkeys(withheld.split(), False) | claims

    def open(self, stage: nn.Module, spec: StageSpec) -> Session:
        """Return a session on the stage."""
        return self.session(stage, spec)
