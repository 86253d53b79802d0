"""Torch settings that allow less precision or another kernel, each on stages whose kernels they affect.

These are extra checks outside the contract: the contract runs in torch's default settings, and a device may be right
only in these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import SETTINGS as AREA
from gradconform.contract.extra_ids import chosen
from gradconform.contract.full_and_split import checks_on
from gradconform.fixtures.blocks.size import LADDER
from gradconform.fixtures.blocks.zoo import BLOCKS
from gradconform.fixtures.stages import ZOO
from gradconform.run.in_short import device_in_short
from gradconform.run.options import RunOptions
from gradconform.run.selection import Selected
from gradconform.sources.blocks.checks import case_of
from gradconform.text.counts import count
from gradconform.trial.modes import MODES


@dataclass(frozen=True, slots=True)
class Setting:
    """A mode of trials, and the dtypes in which it changes results; empty means every one."""

    mode: str
    dtypes: tuple[str, ...] = ()


#: Keyed by the name that a user types. Less precise products and autocast affect only float32.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "autocast-bfloat16": Setting("autocast", ("float32",)),
        "autocast-float16": Setting("autocast_float16", ("float32",)),
        "deterministic": Setting("deterministic"),
        "float32-high": Setting("float32_high", ("float32",)),
        "float32-medium": Setting("float32_medium", ("float32",)),
    }
)

#: Stages of the zoo, and blocks at the smallest size: products, convolutions, normalisations, lookups, recurrences.
_STAGES = (
    "mlp", "linear-3d", "conv2d", "layer-norm", "group-norm", "batch-norm", "embedding", "gathered-parameter",
    "max-indices", "lstm", "tied-apart",
)  # fmt: skip
_BLOCKS = ("attention-causal", "rms-norm", "swiglu", "experts", "decoder-layer", "vision-block", "conv-stem")
#: One of each kind, for a device in short.
_IN_SHORT = ("mlp", "conv2d", "layer-norm", "gathered-parameter", "lstm", "attention-causal")


@dataclass(frozen=True, slots=True)
class OnSettings:
    """The selected checks, their ``settings``, and the number of ``stages`` under each."""

    checks: tuple[Check, ...]
    settings: tuple[str, ...]
    stages: int

    @property
    def description(self) -> str:
        """Return the report's text on them before any check runs."""
        return f"{', '.join(self.settings)}, each on {count(self.stages, 'stage')}"


def select(options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
    """Return the checks under the settings that the options name.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a name that no setting has.
    """
    del measured
    selected = select_checks(options.setting, in_short=device_in_short(options))
    return Selected(checks=selected.checks, lines=(f"settings: {selected.description}",))


def select_checks(patterns: Sequence[str], *, in_short: bool = False) -> OnSettings:
    """Return the checks under the settings that ``patterns`` name; ``in_short``, on fewer stages and in B alone.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a pattern that names none.
    """
    cases = {name: ZOO[name] for name in _STAGES}
    cases |= {name: case_of(BLOCKS[name], LADDER["small"][0]) for name in _BLOCKS}
    if in_short:
        cases = {name: cases[name] for name in _IN_SHORT}
    names = chosen(patterns, {name: name for name in SETTINGS}, "unknown setting {}")
    checks: list[Check] = []
    for name in names:
        setting = SETTINGS[name]
        for stage, case in cases.items():
            what = f"stage {stage} while {MODES[setting.mode]}"
            modes = frozenset({setting.mode})
            checks += checks_on(
                AREA, f"{name}.{stage}", what, [case], modes=modes, dtypes=setting.dtypes, split=not in_short
            )
    return OnSettings(tuple(checks), tuple(names), len(cases))
