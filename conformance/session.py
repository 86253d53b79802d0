"""A run from target to report: the one way that the library, the command and the pytest plugin all take."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from gradconform.check import Check
from gradconform.defaults import DEFAULT_SEED
from gradconform.devices import Choice, SelectionError, choose, dtype_named
from gradconform.devices.naming import placed, ready
from gradconform.environment import environment
from gradconform.numeric_flags import flags_named, flags_set
from gradconform.oracle_cache import OracleCache
from gradconform.own_schedules import Given, check_of, schedules_of
from gradconform.percentage import percentage_named
from gradconform.plan import Item, Plan, make_plan
from gradconform.records import Header, Place, header_of
from gradconform.results import Report, Result
from gradconform.run import Runner, one_thread
from gradconform.shard import Shard
from gradconform.targets import Target, resolve
from gradconform.waivers.file import read_waivers, refuse_unknown_checks
from gradconform.waivers.waiving import Waivers

_SEEDS = 2**63 - 1  # the loss's target is drawn from the next one

OnResult = Callable[[Result], None]
OnStart = Callable[[Place, str, str], None]


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
        require_device_execution: float | str | None = None,
        schedule: Given | Sequence[Given] = (),
        shard: Shard | str | None = None,
        waivers: str | os.PathLike[str] | None = None,
        diagnose: bool = True,
        oracles: OracleCache | None = None,
        device_plugins: Sequence[str] | str = (),
        flags: Mapping[str, str] | Sequence[str] | str = (),
        choice: Choice | None = None,
    ) -> None:
        """Resolve the target and make the plan: of the contract, or of the schedules that are given.

        ``require_device_execution`` is the percentage of a check's operations that has to run on the device. ``shard``
        takes a part of the plan, ``waivers`` names a file of failures that are expected. ``diagnose`` and
        ``oracles`` are those of ``Runner``. ``device_plugins`` are modules that make devices usable, ``flags`` those of
        :mod:`gradconform.numeric_flags`. A ``choice`` that was made before takes the place of ``device``, ``dtype`` and
        ``device_plugins``; to make it ready is left to the caller, since a process that runs no check opens no device.

        Raises :class:`~gradconform.targets.TargetError`, :class:`~gradconform.devices.SelectionError`,
        :class:`~gradconform.waivers.file.WaiverError` and :class:`~gradconform.fixtures.schedules.ScheduleError` (all
        ``ValueError``) before anything runs.
        """
        self.flags = flags_named([flags] if isinstance(flags, str) else flags)
        self.choice = choice or choose(_several(device), _several(dtype), plugins=_several(device_plugins))
        if choice is None:
            ready(self.choice, self.flags)
        manifest, self.beside = _checks_of(schedule)
        self.plan: Plan = make_plan(
            manifest,
            profile=profile,
            include=None if checks is None else list(_several(checks)),
            exclude=_several(exclude),
            cells=self.choice.cells,
            shard=Shard.parse(shard) if isinstance(shard, str) else shard,
        )
        self.target: Target = resolve(target)
        self.seed = _seed_named(seed)
        self.strict = strict
        self.waivers = None if waivers is None else self._waivers(os.fspath(waivers))
        self._probe = probe or profile == "full"
        self._required = None if require_device_execution is None else percentage_named(require_device_execution)
        self._diagnose, self._oracles = diagnose, oracles
        self._runners: dict[tuple[str, str], Runner] = {}

    def run_item(self, item: Item) -> Result:
        """Run one item of the plan."""
        key = (item.device, item.dtype)
        if key not in self._runners:
            device, dtype = placed(self.choice, item.device), dtype_named(item.dtype)
            self._runners[key] = Runner(
                self.target,
                device=device,
                dtype=dtype,
                seed=self.seed,
                probe=self._probe,
                diagnose=self._diagnose,
                oracles=self._oracles,
                require_device_execution=self._required,
            )
        with flags_set(self.flags, self._runners[key].device.type):
            result = self._runners[key].run(item.check)
        # Whichever index a worker has taken, the result is that of the device that was named.
        result = replace(result, device=item.device)
        return result if self.waivers is None else self.waivers.settle(result)

    def _waivers(self, path: str) -> Waivers:
        """Return the waivers as this run applies them; refuse those of checks that do not exist."""
        from gradconform.contract import CHECKS  # noqa: PLC0415 (as in _checks_of)

        found = read_waivers(path)
        refuse_unknown_checks(found, CHECKS)
        cells = [(item.device, item.dtype) for item in self.plan.items]
        return found.within(adapter=self.target.name, torch=str(torch.__version__), cells=dict.fromkeys(cells))

    def empty_report(self) -> Report:
        """Return the report of this session before anything has run."""
        return Report(
            profile=self.plan.profile,
            target=self.target.described(),
            environment=self._environment(),
            seed=self.seed,
            manifest=self.plan.manifest,
            planned=len(self.plan.items),
            strict=self.strict,
            beside=self.beside,
            shard=self.plan.shard,
            waivers=None if self.waivers is None else self.waivers.record(),
            devices=self.choice.told,
        )

    def _environment(self) -> dict[str, Any]:
        autocast = self.flags.get("autocast", "off")
        others = {name: value for name, value in self.flags.items() if name != "autocast"}
        with flags_set(others, "cpu"):
            found = environment(self.choice.devices, self.flags, self.choice.described)
        if autocast != "off":  # set around checks alone: this process may not even know the device
            found["backends"]["autocast"] = ", ".join(f"{name} {autocast}" for name in self.choice.types)
        return found

    @cached_property
    def _items(self) -> dict[Place, Item]:
        """The items of the plan by place, in order."""
        return {Place(item.check.id, item.device, item.dtype): item for item in self.plan.items}

    def header(self, options: Mapping[str, Any] | None = None) -> Header:
        """Return what stands at the head of this session's records; ``options`` are those it was made with."""
        return header_of(self.empty_report(), tuple(self._items), options)

    def run(
        self,
        on_result: OnResult | None = None,
        *,
        on_start: OnStart | None = None,
        places: Iterable[Place] | None = None,
    ) -> Report:
        """Run the items at ``places``, or every item of the plan, in order.

        ``on_start`` is told of each item as it begins, with the level and the requirement its result will have;
        ``on_result`` sees each result as it comes.
        """
        report = self.empty_report()
        with _settled_objects(), one_thread():
            for place in self._items if places is None else places:
                item = self._items[place]
                if on_start is not None:
                    on_start(place, self._level(item), item.check.requirement)
                result = self.run_item(item)
                report.results.append(result)
                if on_result is not None:
                    on_result(result)
        return report

    def _level(self, item: Item) -> str:
        """Return the level of a failure: what is tried although it is not claimed can only be a failed SHOULD."""
        return "SHOULD" if item.check.unmet(self.target.capabilities) else item.check.level


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


def _checks_of(schedule: Given | Sequence[Given]) -> tuple[Mapping[str, Check], tuple[str, ...]]:
    """Return the checks of a run by id, and what stands beside the contract: schedules that are given, or nothing."""
    # Its import draws stages and runs a backward on each, and a device must be known to torch before the first one.
    from gradconform.contract import CHECKS  # noqa: PLC0415 (as said above)

    schedules = schedules_of(schedule)
    own = [check_of(name, found) for name, found in schedules.items()]
    return {check.id: check for check in own} or CHECKS, tuple(f"{one.name}: {one.size}" for one in schedules.values())


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
    waivers: str | os.PathLike[str] | None = None,
    device_plugins: Sequence[str] | str = (),
    flags: Mapping[str, str] | Sequence[str] | str = (),
) -> Report:
    """Run the contract against ``target`` and return the report; a target that does not conform raises nothing.

    ``target`` is anything that ``gradconform run`` takes, or an object: an adapter, or a namespace with torch's
    functions. ``checks`` narrows by globs over check ids; a narrowed run never conforms. ``schedule`` names CSV files
    in torch's format, or schedules of :mod:`gradconform.fixtures.schedules`: they are judged in place of the contract.
    ``waivers`` is a TOML file of failures that are expected; none is looked for where none is named.
    ``device`` may be ``auto`` or ``all``, ``dtype`` may be ``all``; ``device_plugins`` are modules that make devices
    usable, and ``flags`` sets those of :mod:`gradconform.numeric_flags`, such as ``{"tf32": "on"}``.
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
        waivers=waivers,
        device_plugins=device_plugins,
        flags=flags,
    )
    return session.run()
