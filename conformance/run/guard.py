"""Guards the process that judges: checks that the kit and torch still behave as before the target's import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from gradconform.contract.check import Check
from gradconform.drive.reference64 import OracleCache
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.gradients import gradients
from gradconform.reference.canaries import canary
from gradconform.results import Result
from gradconform.tolerance import overridden, tolerances_as_shipped
from gradconform.trial.trial import Trial

from .canaries import BACKWARDS, UNCHANGED, disbelief
from .judging import one_thread
from .kit_code import KitCode
from .runner import Runner

#: The process is examined again after this many checks.
EVERY = 250

_TRIAL = Trial(stages=(StageCase("canary", "one Linear", lambda: nn.Linear(3, 2), (Normal((4, 3)),)),), program="F0 B0")
_CPU = torch.device("cpu")


class Guard:
    """Stores the state of the process at its creation; ``problem`` is why it cannot be trusted any more.

    ``report_result`` receives the result of each canary.
    """

    def __init__(self, checks: Iterable[Check] = ()) -> None:
        """Store the state of the kit, of its ``checks`` and of torch before the target is imported."""
        self._changed_code = KitCode(checks).changed  # bound here: what replaces the method is found by it
        self._dtype, self._tolerances = torch.get_default_dtype(), overridden()
        self._by_import: str | None = None
        self._items = 0
        self.problem: str | None = None
        self.report_result: Callable[[Result], None] = lambda _: None

    def target_imported(self) -> None:
        """Store the settings that the import of the target changed."""
        now = torch.get_default_dtype()
        if now is not self._dtype:
            self._by_import = f"importing the target changed torch's default dtype from {self._dtype} to {now}"

    def before_item(self) -> None:
        """Examine the process before the first item, and again before some later ones."""
        if self._items % EVERY == 0:
            self.look()
        self._items += 1

    def look(self) -> str | None:
        """Return why the process cannot be trusted, by judging the canaries; None if it can."""
        with one_thread():
            for result in self._results():
                self.report_result(result)
                self.problem = self.problem or disbelief(result)
        return self.problem

    def _results(self) -> Iterator[Result]:
        changed = self._by_import or self._changed()
        values: dict[str, Any] = {} if changed is None else {"status": "failed", "message": changed}
        yield _check(UNCHANGED).result("cpu", "float32", **values)
        oracles = OracleCache()  # used only here: plain autograd runs again each time
        for name in BACKWARDS:
            target = canary(name.rpartition(".")[2])
            runner = Runner(target, device=_CPU, dtype=torch.float32, diagnose=False, oracles=oracles)
            with tolerances_as_shipped():  # a hook may have set tolerances that accept everything
                result = runner.run(_check(name))
            yield result

    def _changed(self) -> str | None:
        if (set_now := overridden()) != self._tolerances:
            return (
                f"importing the target changed the tolerances that hooks have set from {self._tolerances} to {set_now}"
            )
        name = self._changed_code()
        return None if name is None else f"{name} changed when the target was imported"


def _check(name: str) -> Check:
    return Check(
        id=name,
        level="MUST",
        profile="quick",
        requirement="The process that judges MUST be what it was before the target was imported.",
        why="A library may patch torch, or the kit, when it is imported.",
        catches="A judge that passes what is wrong.",
        trials=(_TRIAL,),
        judge=gradients,
        needs=frozenset(),
        source=__name__,
    )
