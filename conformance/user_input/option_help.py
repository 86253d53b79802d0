"""The names, help words and defaults of a run's options; this module imports little.

pytest reads them at every start, also without a run. The use of each option is in :mod:`gradconform.run.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradconform.version import CONTRACT_VERSION

#: ``several`` are names, which commas may separate; ``paths`` are files, whose names may contain a comma.
Kind = Literal["text", "several", "paths", "switch"]

#: The seed of all values if no seed is named.
DEFAULT_SEED = 20


@dataclass(frozen=True, kw_only=True)
class OptionHelp:
    """One option under its names. ``unset`` describes an empty default."""

    name: str
    help: str
    metavar: str = ""
    default: Any = None
    kind: Kind = "text"
    unset: str = "none"
    word: str = ""

    def __post_init__(self) -> None:
        """Derive the command-line name from the name if none is set."""
        object.__setattr__(self, "word", self.word or self.name.replace("_", "-"))

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.metavar if self.name == "target" else f"--{self.word}"

    @property
    def shown(self) -> str:
        """The default as shown in help."""
        if self.kind == "switch":
            return "off"
        return (" ".join(self.default) if isinstance(self.default, tuple) else str(self.default or "")) or self.unset


_ALL = (
    OptionHelp(
        name="target",
        metavar="TARGET",
        help="judge TARGET: a registered name, package.module[:object] or path/to/file.py[:object]",
    ),
    OptionHelp(
        name="device",
        metavar="DEVICE",
        default=("cpu",),
        kind="several",
        help="run on DEVICE: cpu, cuda, cuda:1, npu:*, auto, all, or another device that torch or a plugin knows",
    ),
    OptionHelp(
        name="device_plugins",
        word="device-plugin",
        metavar="MODULE",
        default=(),
        kind="several",
        help="import MODULE first; it registers a device that torch does not know",
    ),
    OptionHelp(
        name="dtype",
        metavar="DTYPE",
        default=("float32",),
        kind="several",
        help="run in DTYPE: float64, float32, bfloat16, float16, or all that the device supports",
    ),
    OptionHelp(
        name="flags",
        word="flag",
        metavar="NAME=VALUE",
        default=(),
        kind="several",
        unset="torch's own",
        help="set a torch flag that changes numbers, such as tf32=on or autocast=bfloat16",
    ),
    OptionHelp(
        name="contract",
        metavar="VERSION",
        default=CONTRACT_VERSION,
        help="use this version of the contract; 'gradconform list --contract VERSION' lists its checks",
    ),
    OptionHelp(
        name="profile",
        metavar="PROFILE",
        default="standard",
        help="run this part of the contract: quick, standard or full",
    ),
    OptionHelp(
        name="checks",
        metavar="GLOB",
        default=(),
        kind="several",
        unset="all",
        help="run only the checks whose id matches GLOB",
    ),
    OptionHelp(
        name="exclude_checks", metavar="GLOB", default=(), kind="several", help="skip the checks whose id matches GLOB"
    ),
    OptionHelp(
        name="skip_operations",
        metavar="FILE",
        default=(),
        kind="paths",
        help="skip the operations that FILE lists for the device and dtype. FILE has the form of torch's device tests "
        "or is a plain list. A .py file is executed, a .json file is read",
    ),
    OptionHelp(name="seed", metavar="N", default=DEFAULT_SEED, help="generate all values from this seed"),
    OptionHelp(name="strict", default=False, kind="switch", help="let a failed SHOULD check change the verdict too"),
    OptionHelp(
        name="probe",
        default=False,
        kind="switch",
        help="also test features that the target does not claim; profile full always does",
    ),
    OptionHelp(
        name="require_device_execution",
        metavar="PERCENT",
        help="fail a check if less than PERCENT of its operations ran on the device; 100 allows no CPU fallback",
    ),
    OptionHelp(
        name="max_crashes",
        metavar="N",
        default=20,
        help="stop after N checks that crashed or hung their worker process",
    ),
    OptionHelp(
        name="schedule",
        metavar="FILE.csv",
        default=(),
        kind="paths",
        help="judge the pipeline schedule in FILE.csv instead of the contract; torch's format, one row per rank",
    ),
    OptionHelp(
        name="stage",
        metavar="STAGE",
        default=(),
        kind="several",
        help="judge TARGET on your own STAGE instead of the contract; name STAGE as you name TARGET",
    ),
    OptionHelp(
        name="operation",
        metavar="NAME",
        default=(),
        kind="several",
        help="judge TARGET on single torch operations instead of the contract: a name, a glob, or all",
    ),
    OptionHelp(
        name="oracle",
        metavar="NAME",
        default=(),
        kind="several",
        help="check each operation without a second device: layout, finite-differences, additive, or all",
    ),
    OptionHelp(
        name="block",
        metavar="NAME",
        default=(),
        kind="several",
        help="judge TARGET on model blocks instead of the contract: a name, a glob, or all; --sizes sets their size",
    ),
    OptionHelp(
        name="sizes",
        metavar="SIZES",
        default="small",
        help="try blocks up to this size: small (32K values), large (1M) or full (2G, if memory allows)",
    ),
    OptionHelp(
        name="setting",
        metavar="NAME",
        default=(),
        kind="several",
        help="judge TARGET under torch settings instead of the contract, such as autocast-bfloat16 or "
        "deterministic: a name, a glob, or all",
    ),
    OptionHelp(
        name="fault",
        metavar="NAME",
        default=(),
        kind="several",
        help="check that known faults are found here, instead of the contract: a name, a glob, all, or none",
    ),
    OptionHelp(
        name="with_contract",
        default=False,
        kind="switch",
        help="judge the contract as well when another option replaces it",
    ),
    OptionHelp(
        name="shard",
        metavar="I/N",
        unset="all",
        help="run part I of N of the checks, such as 1/4; 'gradconform merge' combines the N reports",
    ),
    OptionHelp(
        name="plan",
        metavar="FILE",
        unset="the user's cache",
        help="read measured operation samples from FILE and add new ones to it; for the shards of one run",
    ),
    OptionHelp(
        name="waivers",
        metavar="FILE",
        unset="gradconform-waivers.toml, if it exists",
        help="read the expected failures from FILE; see 'gradconform waivers --help'",
    ),
)

#: Every option of a run by its name, in the order in which help shows them.
RUN_OPTION_HELP: Mapping[str, OptionHelp] = {one.name: one for one in _ALL}
