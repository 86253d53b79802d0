"""The output of ``gradconform doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradconform.devices.numeric_profile import NumericProfile
from gradconform.torch_releases.tested import untested

from .lines import Line, wrapped
from .probed_devices import Device
from .sentences import unwatched
from .terminal import preflight_lines

if TYPE_CHECKING:
    from gradconform.devices.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A registered target: its version and location, or the reason why it cannot be used."""

    name: str
    version: str | None = None
    file: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of this installation; ``targets`` is empty if a device was named."""

    versions: dict[str, str]
    devices: tuple[Probe, ...]
    targets: tuple[TargetState, ...]


def health_lines(health: Health, width: int) -> list[Line]:
    """Return the lines on versions, devices and targets."""
    versions = health.versions
    lines = wrapped(
        f"gradconform {versions['gradconform']}, contract {versions['contract']}, torch {versions['torch']}, "
        f"Python {versions['python']}, {versions['platform']}",
        width,
        hanging=4,
        role="heading",
    )
    if note := untested(versions["torch"]):
        lines += wrapped(note, width, hanging=4, role="warning")
    lines += [Line(), Line("devices", "heading")]
    for probe in health.devices:
        lines += _device(probe, width)
    lines += [Line(), Line("targets", "heading")] if health.targets else []
    column = max((len(one.name) for one in health.targets), default=0)
    for target in health.targets:
        lines += _target(target, column, width)
    return lines


def _device(probe: Probe, width: int) -> Iterator[Line]:
    if probe.reason is not None:
        yield from wrapped(f"{probe.device}: cannot be used: {probe.reason}", width, indent=2, hanging=4, role="bad")
        return
    usable = [dtype for dtype, problem in probe.dtypes.items() if not problem]
    simulated = ", simulated" if probe.simulated else ""
    yield Line(f"  {probe.device}: can be used{simulated}", "good")
    yield from wrapped(f"dtypes      {' '.join(usable) or 'none'}", width, indent=4, hanging=12)
    for dtype, problem in probe.dtypes.items():
        if problem:
            yield from wrapped(f"{dtype} would be skipped: {problem}", width, indent=16, hanging=4, role="warning")
    for line in preflight_lines(Device.of(probe.to_dict(), "pre-flight"), width):
        yield Line(f"    {line.text}", line.role)
    yield from wrapped(f"measured    {'; '.join(_facts(probe))}", width, indent=4, hanging=12, role="faint")
    for name, limit in probe.limits.items():
        if name != "simulated":  # reported above
            yield from wrapped(f"limit       {name}: {limit}", width, indent=4, hanging=12, role="faint")


def _facts(probe: Probe) -> Iterator[str]:
    facts = probe.facts
    yield "memory is counted" if facts.get("counts_memory") else "memory is not counted"
    if facts.get("float32_product_keeps_digits") is False:
        yield "float32 products have fewer bits, as with TF32"
    yield from NumericProfile.from_dict(facts.get("numerics") or {}).sentences
    if facts.get("draws_as_the_cpu") is False:
        yield "its random numbers differ from the CPU's"
    if probe.ends_where_a_backward_raises:
        yield "an error raised in a backward ends the process"
    if probe.keeps_replaced_data:
        yield "`parameter.data = tensor` keeps the old values"
    yield from map(unwatched, probe.hides)


def _target(target: TargetState, column: int, width: int) -> list[Line]:
    name = target.name.ljust(column)
    if target.problem is not None:
        return wrapped(f"{name}  cannot be used: {target.problem}", width, indent=2, hanging=column + 2, role="warning")
    version = f", version {target.version}" if target.version else ""
    return wrapped(f"{name}  installed{version}", width, indent=2, hanging=column + 2)
