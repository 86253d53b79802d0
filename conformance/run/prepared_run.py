"""A run of a source that judges without workers of the kit: in this process, or in ranks that it starts itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from gradconform.contract.shard import Shard, ShardError
from gradconform.devices.environment import environment
from gradconform.exits import RunStoppedError
from gradconform.files.records import Header, header_of
from gradconform.requirements.clause import Clause
from gradconform.results import Place, Report, Result
from gradconform.user_input.option import OptionValues
from gradconform.user_input.values import SelectionError, nearest
from gradconform.waivers.waiver import Waivers, read_waivers, refuse_unknown_checks

from .execution import OnResult, OnStart
from .loaded_files import loaded_files

#: Runs the checks with these ids, reports each as it begins and as it ends, and returns why it stopped early, or None.
Work = Callable[[Collection[str], OnResult, OnStart], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The checks of a run, before one is selected.

    ``settled`` are the results of checks that cannot run here. ``elsewhere`` has the ids of other profiles, by profile,
    for a message. ``lines`` are the report's on the checks, and ``target`` is its entry on the target.
    """

    clauses: Sequence[Clause]
    target: Mapping[str, Any]
    lines: tuple[str, ...]
    device: str
    dtype: str
    profile: str = "standard"
    settled: Sequence[Result] = ()
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def selected(self, options: OptionValues) -> tuple[Clause, ...]:
        """Return the checks whose id matches a pattern of the options; raise for a pattern that matches none."""
        patterns = options.checks or ("*",)
        for pattern in patterns:
            self._refuse_unmatched(pattern)
        return tuple(one for one in self.clauses if any(fnmatchcase(one.id, pattern) for pattern in patterns))

    def _refuse_unmatched(self, pattern: str) -> None:
        known = [clause.id for clause in self.clauses]
        if any(fnmatchcase(name, pattern) for name in known):
            return
        for profile, others in self.elsewhere.items():
            if any(fnmatchcase(name, pattern) for name in others):
                msg = f"--checks {pattern!r} matches no check of this profile; add --profile {profile}"
                raise SelectionError(msg)
        msg = f"--checks {pattern!r} matches no check; nearest: {nearest(pattern, known)[:300]}"
        raise SelectionError(msg)


class PreparedRun:
    """A run of a source, ready to begin; it is an :class:`~gradconform.run.execution.Execution`."""

    def __init__(self, options: OptionValues, planned: Planned, work: Work) -> None:
        """Plan the checks that the options select, of them the shard's, with the waivers.

        Raises ``ValueError`` for a pattern without a check, an empty shard and an invalid file of waivers.
        """
        self._work = work
        self._settled = {result.check: result for result in planned.settled}
        #: The selected checks.
        self.clauses = clauses = planned.selected(options)
        names = [*self._settled, *(clause.id for clause in clauses)]
        places = [Place(name, planned.device, planned.dtype) for name in names]
        report = Report(
            profile=planned.profile,
            target=dict(planned.target),
            environment=environment(),
            seed=getattr(options, "seed", 0),
            options=options.to_json(),
            manifest=len(planned.clauses) + len(self._settled),
            planned=len(places),
            extra=planned.lines or ("checks beside the contract",),  # without one, it would judge the contract
        )
        if options.shard is not None:
            report, places = _of_shard(options.shard, report, places)
        self._waivers = None if options.waivers is None else _waivers(options.waivers, planned, report)
        if self._waivers is not None:
            report = replace(report, waivers=self._waivers.record())
        self.header: Header = header_of(report, tuple(places), {}, loaded_files(options))

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the checks at ``places``; raise :class:`~gradconform.exits.RunStoppedError` if the run is given up."""
        wanted = [place.check for place in places]

        def waived(result: Result) -> None:
            on_result(result if self._waivers is None else self._waivers.apply(result))

        for name in [name for name in wanted if name in self._settled]:
            waived(self._settled[name])
        left = [name for name in wanted if name not in self._settled]
        stopped = self._work(left, waived, on_start) if left else None
        if stopped is not None:
            raise RunStoppedError(stopped)

    def close(self) -> None:
        """Free nothing: what the work starts, it ends."""


def _of_shard(shard: Shard, report: Report, places: Sequence[Place]) -> tuple[Report, list[Place]]:
    positions = shard.positions(places)
    if not positions:
        msg = f"shard {shard} has no check of {len(places)}; use fewer shards"
        raise ShardError(msg)
    record = shard.record(positions, [place.name for place in places])
    return replace(report, planned=len(positions), shard=record), [places[position] for position in positions]


def _waivers(path: str, planned: Planned, report: Report) -> Waivers:
    found = read_waivers(path)
    refuse_unknown_checks(found, {clause.id for clause in planned.clauses} | {one.check for one in planned.settled})
    torch = str(report.environment["torch"])
    return found.within(adapter=str(planned.target["name"]), torch=torch, cells=[(planned.device, planned.dtype)])
