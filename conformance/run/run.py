"""A run from target to report: the library, the command and the pytest plugin all use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from gradconform.adapter import is_option
from gradconform.contract import checks_of
from gradconform.contract.plan import Item, Plan, make_plan
from gradconform.devices.choice import DeviceChoice, choose
from gradconform.devices.dtypes import dtype_named
from gradconform.devices.environment import environment
from gradconform.devices.flags import flags_named, flags_set
from gradconform.devices.pace import pace
from gradconform.devices.prepared import device_here, ready
from gradconform.devices.probe import Probe
from gradconform.drive.reference64 import OracleCache
from gradconform.files.records import Header, header_of
from gradconform.process.imports import objects_frozen
from gradconform.results import Place, Report, Result, now
from gradconform.target.resolve import Target, resolve
from gradconform.trial.trial import Trial
from gradconform.waivers.waiver import Waivers, read_waivers, refuse_unknown_checks

from .canaries import withdrawn
from .execution import OnResult, OnStart
from .guard import Guard
from .judging import Engine, judged, one_thread
from .loaded_files import loaded_files
from .options import RunOptions, accepts_run_options
from .runner import Runner
from .selection import checks_module, selection_of
from .skip_lists import withheld_from

#: Why a device cannot run some checks, by its probe.
_ENDS = "plain autograd on this device ends the process where a backward raises, so no check lets one raise"
_KEEPS = "on this device `parameter.data = tensor` keeps the old values, so no check replaces the data of parameters"


class Run:
    """A target, a plan and options, all valid: invalid ones are refused when the run is created."""

    def __init__(  # noqa: PLR0913 (the run's options are one; the others are prepared by the caller)
        self,
        options: RunOptions,
        *,
        adapters: Mapping[str, object] | None = None,
        choice: DeviceChoice | None = None,
        diagnose: bool = True,
        oracles: OracleCache | None = None,
        measured: Mapping[str, Any] | None = None,
        guarded: bool = True,
    ) -> None:
        """Resolve the target and make the plan: of the contract, or of the given schedules.

        ``adapters`` are targets by name in addition to the registered ones. A ``choice`` that was made before replaces
        the options on devices and dtypes. The caller has to make it ready, since a process that runs no check opens no
        device. ``diagnose`` and ``oracles`` are those of ``Runner``. ``measured`` has the plan's measurements from
        another process of the same run, which are not repeated. A target of the kit itself need not be ``guarded``.

        Raises :class:`~gradconform.target.loading.TargetError`, :class:`~gradconform.user_input.values.SelectionError`,
        :class:`~gradconform.waivers.waiver.WaiverError` and :class:`~gradconform.fixtures.schedules.ScheduleError` (all
        ``ValueError``) before anything runs.
        """
        self.options = options
        self._made = now()
        self.flags = flags_named(options.flags)
        self.choice = choice or choose(options.device, options.dtype, plugins=options.device_plugins, flags=self.flags)
        if choice is None:
            ready(self.choice, self.flags)
        selection = selection_of(options, measured)
        self._sources, self._extra, self.measured = selection.sources, selection.lines, selection.measured
        self.plan: Plan = make_plan(
            selection.checks,
            profile=options.profile,
            include=options.checks,
            exclude=options.exclude_checks,
            cells=self.choice.cells,
            shard=options.shard,
        )
        self._withheld = withheld_from(self.plan.items, options.skip_operations)
        self._extra += self._withheld.description
        #: Guards this process; None if the target is one of the kit's own.
        self.guard: Guard | None = Guard(item.check for item in self.plan.items) if guarded else None
        self.target: Target = resolve(options.target, extra=adapters)
        if self.guard is not None:
            self.guard.target_imported()
        self.waivers = None if options.waivers is None else self._waivers(options.waivers)
        self._diagnose, self._oracles = diagnose, oracles
        self._engines: dict[tuple[str, str, str], Engine] = {}
        #: Whether failures of planned rows are examined by additional trials.
        self.explains = diagnose

    def run_item(self, item: Item) -> Result:
        """Return the result of one item; it is an error of the environment if this process cannot be trusted."""
        if self.guard is not None:
            self.guard.before_item()
            if self.guard.problem is not None:
                return withdrawn(self._begun(item), self.guard.problem)
        device = device_here(self.choice, item.device)
        unasked = self._withheld.result(item) or _left_out(item, self.choice.probe_of(str(device)))
        if unasked is not None:
            return unasked
        with flags_set(self.flags, device.type):
            result = judged(self._engine(item, device), item.check)
        # Whatever index a worker has, the result belongs to the named device.
        result = result if result.device == item.device else replace(result, device=item.device)
        return result if self.waivers is None else self.waivers.apply(result)

    def _engine(self, item: Item, device: torch.device) -> Engine:
        """Return the target's runner, or the engine of a source whose check judges something else."""
        source = self._sources[item.check.id] if item.check.judges else ""
        key = (source, item.device, item.dtype)
        if key not in self._engines:
            make = partial(checks_module(source).engine, self.options) if source else partial(self._runner, key[1:])
            self._engines[key] = make(device, dtype_named(item.dtype))
        engine = self._engines[key]
        if isinstance(engine, Runner):
            engine.explains = self.explains
        return engine

    def _runner(self, cell: tuple[str, str], device: torch.device, dtype: torch.dtype) -> Runner:
        return Runner(
            self.target,
            device=device,
            dtype=dtype,
            seed=self.options.seed,
            probe=self.options.probe or self.options.profile == "full",
            diagnose=self._diagnose,
            oracles=self._oracles,
            require_device_execution=self.options.require_device_execution,
            readers=self._readers(cell),
        )

    def _readers(self, cell: tuple[str, str]) -> Counter[Trial]:
        """Return how many checks of the target on a device in a dtype read each trial."""
        own = (item.check for item in self.plan.items if (item.device, item.dtype) == cell)
        return Counter(trial for check in own if not check.judges for trial in check.trials)

    def _waivers(self, path: str) -> Waivers:
        """Return the waivers as this run applies them; refuse those of unknown checks."""
        found = read_waivers(path)
        refuse_unknown_checks(found, checks_of(self.options.contract))
        cells = [(item.device, item.dtype) for item in self.plan.items]
        return found.within(adapter=self.target.name, torch=str(torch.__version__), cells=dict.fromkeys(cells))

    def empty_report(self) -> Report:
        """Return the report of this run before anything has run."""
        return Report(
            profile=self.plan.profile,
            target=self.target.described(),
            environment=self._environment(),
            seed=self.options.seed,
            manifest=self.plan.manifest,
            planned=len(self.plan.items),
            strict=self.options.strict,
            extra=self._extra,
            shard=self.plan.shard,
            waivers=None if self.waivers is None else self.waivers.record(),
            devices=self.choice.as_json,
            contract=self.options.contract,
            options=self.options.to_json(),
            made=self._made,
        )

    def _environment(self) -> dict[str, Any]:
        autocast = self.flags.get("autocast", "off")
        others = {name: value for name, value in self.flags.items() if name != "autocast"}
        with flags_set(others, "cpu"):
            found = environment(self.choice.devices, self.flags, self.choice.described)
        if autocast != "off":  # set around checks only: this process may not even know the device
            found["backends"]["autocast"] = ", ".join(f"{name} {autocast}" for name in self.choice.types)
        return found

    @cached_property
    def _items(self) -> dict[Place, Item]:
        """The items of the plan by place, in order."""
        return {item.place: item for item in self.plan.items}

    def header(self, *, paced: bool = False) -> Header:
        """Return the header of this run's records; if it is ``paced``, with the pace of each device and of the CPU."""
        files = loaded_files(self.options, self.choice.types)
        header = header_of(self.empty_report(), tuple(self._items), self.measured, files)
        return replace(header, paces=self._paces()) if paced else header

    def _paces(self) -> dict[str, float]:
        """Return the pace of each device by its name in the plan, and of ``cpu``."""
        here = {"cpu": torch.device("cpu"), **{name: device_here(self.choice, name) for name in self.choice.devices}}
        with one_thread():
            found = {name: pace(device) for name, device in here.items()}
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    def run(
        self,
        on_result: OnResult | None = None,
        *,
        on_start: OnStart | None = None,
        places: Iterable[Place] | None = None,
    ) -> Report:
        """Return the report after running the items at ``places``, or every item of the plan, in order.

        ``on_start`` receives each item as it begins, as a ``not_run`` result; ``on_result`` receives each result as it
        arrives. If this process turns out to be untrustworthy, it receives all once more, withdrawn.
        """
        report = self.run_places(on_result, on_start=on_start, places=places)
        problem = self.guard.look() if self.guard is not None and report.results else None
        if problem is not None:
            report.results = [withdrawn(result, problem) for result in report.results]
            if on_result is not None:
                for result in report.results:
                    on_result(result)
        return report

    def run_places(
        self, on_result: OnResult | None, *, on_start: OnStart | None, places: Iterable[Place] | None
    ) -> Report:
        """Return the report as :meth:`run` does, but leave the final examination of this process to the caller."""
        report = self.empty_report()
        with objects_frozen(), one_thread():
            for place in self._items if places is None else places:
                item = self._items[place]
                if on_start is not None:
                    on_start(self._begun(item))
                result = self.run_item(item)
                report.results.append(result)
                if on_result is not None:
                    on_result(result)
        return report

    def _begun(self, item: Item) -> Result:
        """Return the known part of an item's result before it runs; for an unclaimed option, a failure is a SHOULD."""
        unmet = tuple(item.check.unmet(self.target.capabilities))
        level = "SHOULD" if any(map(is_option, unmet)) else item.check.level
        return item.check.result(item.device, item.dtype, status="not_run", level=level, unclaimed=unmet)


@accepts_run_options()
def check_stage_backward(target: object, **options: Any) -> Report:
    """Return the report of the contract run against ``target``; a target that does not conform raises nothing.

    ``target`` is anything that ``gradconform run`` takes, or an object: an adapter, or a namespace with torch's
    functions. ``contract`` names a version of the contract; the default is the newest. ``checks`` selects by globs over
    check ids, without ``exclude_checks``; a narrowed run never conforms. ``skip_operations`` names files with
    operations to skip, as :mod:`gradconform.run.skip_lists` reads them; each skipped check is reported.

    These options replace the contract. ``schedule`` names CSV files in torch's format, or schedules of
    :mod:`gradconform.fixtures.schedules`. ``stage`` names user-defined stages, or has stage cases: the contract's
    requirements for a plain stage are checked on them. ``operation`` names operations of torch, or ``all`` that it
    lists as differentiable: each is judged in its own stage. ``oracle`` names oracles that check the device on each of
    these operations without a second device: ``layout``, ``finite-differences``, ``additive`` or ``all``. ``block``
    names blocks of models, at ``sizes`` up to ``small``, ``large`` or ``full``. ``setting`` names settings of torch,
    under each of which some stages are judged. ``fault`` names faults that the kit knows: each must be found here.
    ``with_contract`` judges the contract in addition.

    ``shard`` takes a part of the plan, such as ``"1/4"``. ``plan`` is a file of the measurements of operation samples:
    a run reads it, and writes new ones. ``waivers`` is a TOML file of expected failures; the default is none.
    ``device`` may be ``auto`` or ``all``, ``dtype`` may be ``all``; ``device_plugins`` are modules that make devices
    usable, and ``flags`` sets those of :mod:`gradconform.devices.flags`, such as ``{"tf32": "on"}``.
    ``require_device_execution`` is the percentage of a check's operations that must run on the device; ``probe`` also
    tries capabilities that the target does not claim. ``max_crashes`` limits worker processes only: here, a crash also
    ends the caller's process.

    Raises ``ValueError`` for an unknown target, device, dtype, version, profile or pattern, and for a schedule that is
    not complete or can never run.
    """
    return Run(RunOptions.of(target, **options)).run()


def _left_out(item: Item, probe: Probe | None) -> Result | None:
    """Return the result of an item that cannot be run on the device of ``probe``, or None for one that can."""
    if probe is None:
        return None
    limits: tuple[tuple[bool, Callable[[Trial], bool], str], ...] = (
        (probe.ends_where_a_backward_raises, lambda trial: bool(trial.raising), _ENDS),
        (probe.keeps_replaced_data, _replaces_data, _KEEPS),
    )
    for limited, needs, text in limits:
        if limited and any(map(needs, item.check.trials)):
            return item.check.result(item.device, item.dtype, status="unsupported", kind="environment", message=text)
    return None


def _replaces_data(trial: Trial) -> bool:
    return any(action.kind == "replace" for action in trial.actions)
