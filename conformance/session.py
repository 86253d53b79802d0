"""A run from target to report: the one way that the library, the command and the pytest plugin all take."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gradconform.contract import CHECKS
from gradconform.devices import SelectionError, device_named, dtype_named
from gradconform.environment import environment
from gradconform.oracle_cache import OracleCache
from gradconform.own_schedules import Given, check_of, schedules_of
from gradconform.plan import DEFAULT_SEED, Item, Plan, make_plan
from gradconform.results import Report, Result
from gradconform.run import Runner, one_thread
from gradconform.targets import Target, resolve

_SEEDS = 2**63 - 1  # the loss's target is drawn from the next one

OnResult = Callable[[Result], None]


class Session:
    """A target, a plan and a seed, all valid: what can be wrong with them is refused when the session is made."""

    def __init__(  # noqa: PLR0913 (these are the options a user has)
        self,
        target: object,
        *,
        device: str | torch.device | Sequence[str | torch.device] = "cpu",
        dtype: str | torch.dtype | Sequence[str | torch.dtype] = "float32",
        profile: str = "standard",
        checks: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str = (),
        seed: int | None = None,
        strict: bool = False,
        probe: bool = False,
        schedule: Given | Sequence[Given] = (),
        diagnose: bool = True,
        oracles: OracleCache | None = None,
    ) -> None:
        """Resolve the target and make the plan: of the contract, or of the schedules that are given.

        ``diagnose`` and ``oracles`` are those of ``Runner``.

        Raises :class:`~gradconform.targets.TargetError`, :class:`~gradconform.devices.SelectionError` and
        :class:`~gradconform.fixtures.schedules.ScheduleError` (all ``ValueError``) before anything runs.
        """
        devices = [str(device_named(name)) for name in _several(device)]
        dtypes = [str(dtype_named(name)).removeprefix("torch.") for name in _several(dtype)]
        include = None if checks is None else list(_several(checks))
        schedules = schedules_of(schedule)
        own = [check_of(name, found) for name, found in schedules.items()]
        self.schedules = tuple(f"{found.name}: {found.size}" for found in schedules.values())
        checks_by_id = {check.id: check for check in own} or CHECKS
        self.plan: Plan = make_plan(
            checks_by_id, profile=profile, include=include, exclude=_several(exclude), devices=devices, dtypes=dtypes
        )
        self.target: Target = resolve(target)
        self.seed = _seed_named(seed)
        self.strict = strict
        self._probe = probe or profile == "full"
        self._diagnose, self._oracles = diagnose, oracles
        self._runners: dict[tuple[str, str], Runner] = {}

    def run_item(self, item: Item) -> Result:
        """Run one item of the plan."""
        key = (item.device, item.dtype)
        if key not in self._runners:
            device, dtype = torch.device(item.device), dtype_named(item.dtype)
            self._runners[key] = Runner(
                self.target,
                device=device,
                dtype=dtype,
                seed=self.seed,
                probe=self._probe,
                diagnose=self._diagnose,
                oracles=self._oracles,
            )
        return self._runners[key].run(item.check)

    def empty_report(self) -> Report:
        """Return the report of this session before anything has run."""
        target = self.target
        return Report(
            profile=self.plan.profile,
            target={
                "text": target.text,
                "name": target.name,
                "version": target.version,
                "file": target.file,
                "sha256": target.sha256,
            },
            environment=environment(),
            seed=self.seed,
            manifest=self.plan.manifest,
            planned=len(self.plan.items),
            strict=self.strict,
            schedules=self.schedules,
        )

    def run(self, on_result: OnResult | None = None) -> Report:
        """Run every item of the plan in order; ``on_result`` sees each result as it comes."""
        report = self.empty_report()
        with _settled_objects(), one_thread():
            for item in self.plan.items:
                result = self.run_item(item)
                report.results.append(result)
                if on_result is not None:
                    on_result(result)
        return report


@contextlib.contextmanager
def _settled_objects() -> Iterator[None]:
    """Keep the collector from walking through all of torch again and again: what is there before a run stays."""
    frozen_by_others = gc.get_freeze_count() > 0
    if not frozen_by_others:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen_by_others:
            gc.unfreeze()


def _seed_named(seed: Any) -> int:
    """Return the seed; raise :class:`~gradconform.devices.SelectionError` for what no generator takes."""
    if seed is None:
        return DEFAULT_SEED
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEEDS:
        msg = f"{seed=} is no seed; expected an integer from 0 to 2**63 - 2"
        raise SelectionError(msg)
    return seed


def _several(given: Any) -> list[Any]:
    """Return a list of what may be given alone or as a sequence; what is given twice counts once."""
    return [given] if isinstance(given, (str, torch.device, torch.dtype)) else list(dict.fromkeys(given))


def check_stage_backward(  # noqa: PLR0913 (these are the options a user has)
    target: object,
    *,
    device: str | torch.device | Sequence[str | torch.device] = "cpu",
    dtype: str | torch.dtype | Sequence[str | torch.dtype] = "float32",
    profile: str = "standard",
    checks: Sequence[str] | str | None = None,
    seed: int | None = None,
    strict: bool = False,
    schedule: Given | Sequence[Given] = (),
) -> Report:
    """Run the contract against ``target`` and return the report; a target that does not conform raises nothing.

    ``target`` is anything that ``gradconform run`` takes, or an object: an adapter, or a namespace with torch's
    functions. ``checks`` narrows by globs over check ids; a narrowed run never conforms. ``schedule`` names CSV files
    in torch's format, or schedules of :mod:`gradconform.fixtures.schedules`: they are judged in place of the contract.
    Raises ``ValueError`` for a target, device, dtype, profile or pattern that does not exist, and for a schedule that
    is not complete or can never run.
    """
    session = Session(
        target,
        device=device,
        dtype=dtype,
        profile=profile,
        checks=checks,
        seed=seed,
        strict=strict,
        schedule=schedule,
    )
    return session.run()
