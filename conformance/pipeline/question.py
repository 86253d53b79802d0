"""What is asked of a pipeline run, as one JSON file that every rank reads."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One check of a run: a schedule in a scenario.

    ``schedule`` is torch's name of a class, or the path of a CSV file (``from_file``). ``rows`` has the cells of each
    rank and says which stages it has; ``size`` is the schedule with its size in words.
    """

    id: str
    schedule: str
    from_file: bool
    size: str
    scenario: str
    rows: tuple[tuple[str, ...], ...]
    microbatches: int

    @property
    def name(self) -> str:
        """The schedule's part of the id: what results are counted by."""
        return self.id.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What every rank runs: ``target`` as a user names it, ``cases`` in order; ``timeout`` is in seconds, per case.

    ``parent`` is the process that waits for the ranks of this machine: without it there is nobody to run for.
    """

    target: str
    cases: tuple[Case, ...]
    device: str
    dtype: str
    seed: int
    timeout: float
    parent: int

    def to_json(self) -> str:
        """Return the question as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Question:
        """Return the question that :meth:`to_json` wrote."""
        values = json.loads(text)
        cases = tuple(
            Case(**{**case, "rows": tuple(tuple(row) for row in case["rows"])}) for case in values.pop("cases")
        )
        return cls(**values, cases=cases)
