"""A check bound to a target, device and dtype: what a test calls, and how its result becomes a test's outcome."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.results import NonConformingError, Result

if TYPE_CHECKING:
    from gradconform.plan import Item
    from gradconform.plugins.contract_run import ContractRun


class CheckFailedError(NonConformingError):
    """A check failed, or could not be judged; the message is the kit's."""


@dataclass(slots=True, eq=False)
class BoundCheck:
    """One check of the contract on one target, device and dtype; calling it runs it.

    ``id``, ``requirement`` and ``level`` are the check's. ``result`` is there once it has been called.
    """

    run: ContractRun
    position: int
    result: Result | None = field(default=None, init=False)

    @property
    def item(self) -> Item:
        """The item of the plan."""
        return self.run.items[self.position]

    @property
    def id(self) -> str:
        """The check's id, e.g. ``split.gradients.mlp``."""
        return self.item.check.id

    @property
    def name(self) -> str:
        """The id with device and dtype, e.g. ``split.gradients.mlp[cpu-float32]``."""
        return self.item.name

    @property
    def requirement(self) -> str:
        """The requirement, a sentence with MUST or SHOULD."""
        return self.item.check.requirement

    @property
    def level(self) -> str:
        """MUST or SHOULD."""
        return self.item.check.level

    @property
    def payload(self) -> dict[str, Any] | None:
        """The result and the run it belongs to, in values that any process can read; None before the call."""
        if self.result is None:
            return None
        return {"run": self.run.header, "position": self.position, "result": plain(self.result.to_dict())}

    @property
    def begun(self) -> dict[str, Any]:
        """The payload of a result that is not there yet, for a report where this process does not live to see it."""
        check = self.item.check
        result = Result(
            check=check.id,
            level=check.level,
            device=self.item.device,
            dtype=self.item.dtype,
            status="not_run",
            requirement=check.requirement,
        )
        return {"run": self.run.header, "position": self.position, "result": plain(result.to_dict())}

    def __call__(self) -> None:
        """Run the check and turn its result into the outcome of the test that calls it.

        Raises :class:`CheckFailedError` for a failure and an error; skips what is unsupported; reports what is waived
        as an expected failure (xfail), and a failed SHOULD as well, unless ``--gradconform-strict`` lets it decide.
        """
        __tracebackhide__ = True
        self.result = self.run.session.run_item(self.item)
        settle(self.result, str(self.run.session.target.text), strict=self.run.session.strict)


def settle(result: Result, target: str, *, strict: bool) -> None:
    """Skip, xfail or raise as ``result`` says; return where it passed."""
    __tracebackhide__ = True
    if result.status == "unsupported":
        pytest.skip(result.message)
    if result.status not in {"failed", "error", "waived"}:
        return
    told = told_in_full(result, target)
    if result.status == "waived":
        pytest.xfail(waived_because(result))
    if not (result.decisive or (strict and result.status == "failed")):
        seen = [line for line in result.message.splitlines() if not line.startswith("program ")]
        pytest.xfail(f"{result.requirement} {seen[0] if seen else result.status}")
    raise CheckFailedError(told)  # reached by --runxfail as well, which lets xfail return


def waived_because(result: Result) -> str:
    """Return why a failure is expected."""
    return "waived: {reason} ({issue}, {owner}, until {expires})".format(**result.waiver or {})


def told_in_full(result: Result, target: str) -> str:
    """Return the requirement, the level, where it was tried, and what was seen."""
    status = f"error ({result.kind})" if result.status == "error" else result.status
    place = f"{result.level} {status}: {target} on {result.device} in {result.dtype}"
    return f"{result.requirement}\n{place}\n{result.message}"


def plain(values: object) -> object:
    """Return ``values`` as JSON has them: pytest-xdist takes no subclass of str, as torch's version is one."""
    return json.loads(json.dumps(values))


def properties(result: Result) -> list[tuple[str, object]]:
    """Return what a JUnit report says of a test beside its outcome."""
    values = {
        "check": result.check,
        "level": result.level,
        "requirement": result.requirement,
        "status": result.status,
        "headroom": result.headroom,
        "waiver": None if result.waiver is None else result.waiver["issue"],
    }
    return [(name, value) for name, value in values.items() if value is not None]
