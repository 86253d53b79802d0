"""The devices and dtypes of a run: those that a user named and that work, and the discovered ones that were skipped.

A run on the CPU alone probes nothing, because the CPU is known to work. Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gradconform.files.records import as_json, tupled
from gradconform.text.counts import count
from gradconform.user_input.values import SelectionError, UnusableDeviceError, nearest

from .names import DTYPE_NAMES, DeviceName, device_names, dtype_name
from .numeric_profile import NumericProfile
from .probe import Probe, Request, requests_for
from .probe_cache import cached_probes
from .probe_questions import probe_here
from .registry import registered_entries, registered_types

#: The indices on which a device named by its type may run, such as ``simx:1,simx:3``.
INDICES_VARIABLE = "GRADCONFORM_DEVICE_INDICES"
#: The most worker processes per index; it overrides the device's known_limits.
PROCESSES_VARIABLE = "GRADCONFORM_PROCESSES_PER_INDEX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A device, or a dtype on it, that ``auto`` or ``all`` found and the run skips."""

    device: str
    dtype: str | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """The ``cells`` of device and dtype for a run, and the probe results of the devices.

    A device that is named by its type alone runs on the first of its ``indices``; workers share them.
    """

    cells: tuple[tuple[str, str], ...]
    probes: tuple[Probe, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    indices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices, in the order of the cells."""
        return tuple(dict.fromkeys(device for device, _ in self.cells))

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types of the devices, in the order of the cells."""
        return tuple(dict.fromkeys(device.partition(":")[0] for device in self.devices))

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """Return torch's description of the probed devices by name: their model and driver."""
        found = {name: self.probe_of(indices[0]) for name, indices in self.indices.items() if indices}
        return {name: dict(probe.facts.get("description") or {}) for name, probe in found.items() if probe is not None}

    def probe_of(self, index: str) -> Probe | None:
        """Return the probe of the device at ``index``."""
        return next((probe for probe in self.probes if probe.device == index), None)

    def numerics_of(self, index: str) -> NumericProfile | None:
        """Return the numeric profile of the device at ``index``; None if it was not measured."""
        probe = self.probe_of(index)
        measured = probe.facts.get("numerics") if probe is not None else None
        return None if measured is None else NumericProfile.from_dict(measured)

    @property
    def as_json(self) -> dict[str, Any] | None:
        """Return the report's entry on the devices as JSON values; None if only the CPU was named."""
        if not (self.probes or self.skipped):
            return None
        values = self.to_dict()
        return {name: values[name] for name in ("probes", "skipped", "indices")}

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as JSON values, for another process."""
        return as_json(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DeviceChoice:
        """Return the choice that :meth:`to_dict` wrote."""
        probes = tuple(Probe.from_dict(probe) for probe in values["probes"])
        skipped = tuple(Skipped(**one) for one in values["skipped"])
        return cls(**{**tupled(values), "probes": probes, "skipped": skipped})


def choose(  # noqa: PLR0913 (a run's subject)
    devices: Iterable[object] = ("cpu",),
    dtypes: Iterable[object] = ("float32",),
    *,
    plugins: Iterable[str] = (),
    here: Iterable[str] = (),
    flags: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> DeviceChoice:
    """Return the named devices and dtypes after trying them; one process tries each choice once.

    ``plugins`` are modules that make devices usable. ``here`` are device types that only this process knows, in
    addition to those that it has registered: they are tried in this process. Numeric profiles are measured under
    ``flags``, which are those of the run. ``fresh`` ignores probes kept by an earlier run. Raises
    :class:`~gradconform.user_input.values.UnusableDeviceError` for a name that cannot be used, with the call that
    failed, and :class:`~gradconform.user_input.values.SelectionError` for text that is no name at all.
    """
    names = tuple(device_names(devices))
    requested = [text.strip() for given in dtypes for text in str(given).split(",")]
    wanted = tuple(dict.fromkeys(text if text == "all" else dtype_name(text) for text in requested))
    if not (names and wanted):
        msg = "no device or no dtype is given; name at least one of each"
        raise SelectionError(msg)
    ours = frozenset({*here, *registered_types()})
    ours -= frozenset(registered_entries()) if ours else ours
    given = tuple(sorted((flags or {}).items()))
    return _chosen(names, wanted, tuple(dict.fromkeys(plugins)), ours, given, fresh=fresh)


@lru_cache(maxsize=64)
def _chosen(  # noqa: PLR0913 (as above)
    names: tuple[DeviceName, ...],
    dtypes: tuple[str, ...],
    plugins: tuple[str, ...],
    here: frozenset[str],
    flags: tuple[tuple[str, str], ...],
    *,
    fresh: bool,
) -> DeviceChoice:
    requests = requests_for(names, plugins, here, flags)
    found = _Found(requests, here, fresh=fresh)
    chosen: dict[str, bool] = {}
    for name in names:
        for device in found.devices(name):
            chosen[device] = chosen.get(device, True) and name.discovers is not None
    cells = [cell for device, discovered in chosen.items() for cell in found.cells(device, dtypes, discovered)]
    if not cells:
        tried = f"{', '.join(n.text for n in names)} in {', '.join(dtypes)}"
        msg = f"no device and dtype can be used; tried {tried}: {_described(found.skipped)}"
        raise UnusableDeviceError(msg)
    indices = {device: found.indices(device) for device in chosen if not is_cpu(device)}
    used = {index for several in indices.values() for index in several}
    probes = tuple(probe for probe in found.probes if probe.device in used)
    return DeviceChoice(
        cells=tuple(cells), probes=probes, skipped=tuple(found.skipped), indices=indices, plugins=plugins
    )


def is_cpu(device: str) -> bool:
    """Return whether the name is the CPU's."""
    return device.partition(":")[0] == "cpu"


def _described(skipped: Sequence[Skipped]) -> str:
    return "; ".join(" ".join(filter(None, (one.device, one.dtype, one.reason))) for one in skipped) or "nothing found"


def _or_here(request: Request, found: list[Probe]) -> list[Probe]:
    """Return the probes; probe in this process a device type that only this process knows."""
    torch = sys.modules.get("torch")
    if torch is None or request.type is None or not any(probe.unknown for probe in found):
        return found
    try:
        torch.device(request.type)
    except RuntimeError:
        return found
    return probe_here(request)


class _Found:
    """The probes of every device type that is named or discovered."""

    def __init__(self, requests: Sequence[Request], here: frozenset[str], *, fresh: bool) -> None:
        self.skipped: list[Skipped] = []
        answers = iter(cached_probes([one for one in requests if one.type not in here], fresh=fresh))
        by_request = [(r, probe_here(r) if r.type in here else _or_here(r, next(answers))) for r in requests]
        self._accelerator = [probe for request, probes in by_request if request.type is None for probe in probes]
        known = {probe.device: probe for _, probes in by_request for probe in probes}
        self.probes = list(known.values())

    def devices(self, name: DeviceName) -> list[str]:
        """Return the devices that one name represents."""
        if name.discovers == "all":
            return ["cpu", *(probe.device for probe in self._usable(probe for probe in self.probes))]
        if name.discovers == "auto":
            hardware = [probe for probe in self._in_order() if not probe.simulated]
            return [probe.device for probe in self._usable(hardware)][:1] or ["cpu"]
        if name.is_cpu:
            return ["cpu" if name.index == "*" else name.text]
        probes = [probe for probe in self.probes if probe.type == name.type]
        if name.index is not None and name.index != "*":
            probes = [probe for probe in probes if probe.device in {name.text, name.type}]
        broken = [probe for probe in probes if probe.reason is not None]
        if broken and (name.index is not None or len(broken) == len(probes)):
            raise _unusable(name, broken[0], self.probes)
        return [probe.device for probe in probes] if name.index == "*" else [name.text]

    def cells(self, device: str, dtypes: Sequence[str], discovered: bool) -> list[tuple[str, str]]:  # noqa: FBT001 (read next to its name)
        """Return the cells of one device; a discovered device, or the dtypes of ``all``, may lack a dtype."""
        cells = []
        for dtype in dict.fromkeys(d for given in dtypes for d in (DTYPE_NAMES if given == "all" else (given,))):
            reason = self._lacks(device, dtype)
            if reason is None:
                cells.append((device, dtype))
            elif discovered or dtype not in dtypes:
                self.skipped.append(Skipped(device=device, dtype=dtype, reason=reason))
            else:
                msg = (
                    f"dtype {dtype!r} cannot be used on device {device!r}: {reason}; "
                    "omit it, or use --dtype all for the dtypes that the device supports"
                )
                raise UnusableDeviceError(msg)
        return cells

    def indices(self, device: str) -> tuple[str, ...]:
        """Return the indices that a name represents: usable, and allowed by the environment."""
        if ":" in device:
            return (device,)
        return _allowed(device, [p.device for p in self.probes if p.type == device and p.reason is None])

    def _lacks(self, device: str, dtype: str) -> str | None:
        """Return why a dtype cannot be used at one of a device's indices, or None."""
        if is_cpu(device):
            return None
        known = {probe.device: probe for probe in self.probes}
        return next((r for index in self.indices(device) if (r := known[index].dtypes.get(dtype))), None)

    def _usable(self, probes: Iterable[Probe]) -> list[Probe]:
        usable = []
        for probe in probes:
            if probe.reason is None:
                usable.append(probe)
            elif not any(skipped.device == probe.device for skipped in self.skipped):
                self.skipped.append(Skipped(device=probe.device, reason=probe.reason))
        return usable

    def _in_order(self) -> list[Probe]:
        """Return the records in the order of ``auto``: torch's own accelerator first."""
        return [*self._accelerator, *(probe for probe in self.probes if probe not in self._accelerator)]


def _unusable(name: DeviceName, probe: Probe, probes: Sequence[Probe]) -> UnusableDeviceError:
    usable = ["cpu", *(other.device for other in probes if other.reason is None)]
    reason = str(probe.reason).removesuffix(".")
    msg = f"device {name.text!r} cannot be used: {reason}; usable here: {', '.join(usable)}"
    if probe.unknown:
        msg += f". {what_an_unknown_device_needs(name.type)}"
    return UnusableDeviceError(f"{msg} ('gradconform doctor' shows all)")


def what_an_unknown_device_needs(device_type: str) -> str:
    """Return the advice for a device that torch does not know."""
    entries = registered_entries()
    near = f", such as {nearest(device_type, entries)}" if entries else ""
    return f"If torch does not know the device, use --device-plugin MODULE or a registered name{near}"


def one_cell(device: object, dtype: object, plugins: Iterable[str] = ()) -> DeviceChoice:
    """Return the choice of one device and one dtype; raise for names that represent several."""
    choice = choose((device,), (dtype,), plugins=plugins)
    if len(choice.cells) != 1:
        cells = ", ".join(" ".join(cell) for cell in choice.cells)
        msg = f"expected one device and one dtype; {str(device)!r} and {str(dtype)!r} mean {cells}"
        raise SelectionError(msg)
    return choice


def _allowed(device_type: str, indices: Sequence[str]) -> tuple[str, ...]:
    """Return the ``indices`` that the environment allows, in its order; all if it names none of the type.

    Raises :class:`~gradconform.user_input.values.UnusableDeviceError` if it names an index that cannot be used.
    """
    given = [name.strip() for name in os.environ.get(INDICES_VARIABLE, "").split(",")]
    named = [name for name in given if name.partition(":")[0] == device_type]
    unusable = [name for name in named if name not in indices]
    if unusable:
        msg = f"{INDICES_VARIABLE} names {unusable[0]!r}, which cannot be used; usable here: {', '.join(indices)}"
        raise UnusableDeviceError(msg)
    return tuple(named or indices)


def refuse_crowd(choice: DeviceChoice, workers: int) -> None:
    """Raise ``SelectionError`` if an index would have more processes than it allows."""
    for device, indices in choice.indices.items():
        limits = [limit for index in indices if (limit := _processes(choice, index)) is not None]
        most = len(indices) * min(limits) if limits else workers
        if workers > most:
            msg = (
                f"{workers} worker processes are too many for device {device!r}. It has "
                f"{count(len(indices), 'usable index', 'usable indices')}; the limit is {min(limits)} per index. Use "
                f"-n {most}, name more indices, or set {PROCESSES_VARIABLE}"
            )
            raise SelectionError(msg)


def _processes(choice: DeviceChoice, index: str) -> int | None:
    """Return the most processes that an index allows; None if there is no limit."""
    probe = choice.probe_of(index)
    given = os.environ.get(PROCESSES_VARIABLE) or (probe.limits.get("processes_per_index") if probe else None)
    if given is None:
        return None
    if not str(given).isdigit() or int(given) < 1:
        msg = f"processes on {index}: expected a whole number of at least 1, got {given!r}; see {PROCESSES_VARIABLE}"
        raise SelectionError(msg)
    return int(given)
