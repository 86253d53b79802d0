"""The words of a run's options, names and defaults, read wherever options are shown; nothing here imports much.

pytest reads them at every start, whether anybody asks for a run or not: what is done with an option is in
:mod:`gradconform.run.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .version import CONTRACT_VERSION

#: ``several`` are names, which commas may separate; ``paths`` are files, in whose names a comma is one.
Kind = Literal["text", "several", "paths", "switch"]

#: What all values are drawn from where no seed is named.
DEFAULT_SEED = 20


@dataclass(frozen=True, kw_only=True)
class OptionWords:
    """One option under its names. ``unset`` tells what an empty default comes to."""

    name: str
    help: str
    metavar: str = ""
    default: Any = None
    kind: Kind = "text"
    unset: str = "none"
    word: str = ""

    def __post_init__(self) -> None:
        """Take the word of the command line from the name, where it has no other."""
        object.__setattr__(self, "word", self.word or self.name.replace("_", "-"))

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.metavar if self.name == "target" else f"--{self.word}"

    @property
    def shown(self) -> str:
        """The default, as help shows it."""
        if self.kind == "switch":
            return "off"
        return (" ".join(self.default) if isinstance(self.default, tuple) else str(self.default or "")) or self.unset


_ALL = (
    OptionWords(
        name="target",
        metavar="TARGET",
        help="judge TARGET: a registered name, package.module[:object] or path/to/file.py[:object]",
    ),
    OptionWords(
        name="device",
        metavar="DEVICE",
        default=("cpu",),
        kind="several",
        help="where it runs: cpu, cuda, cuda:1, npu:*, any other that torch or a plugin knows, auto, or all",
    ),
    OptionWords(
        name="device_plugins",
        word="device-plugin",
        metavar="MODULE",
        default=(),
        kind="several",
        help="import MODULE first, which makes a device usable that torch does not know",
    ),
    OptionWords(
        name="dtype",
        metavar="DTYPE",
        default=("float32",),
        kind="several",
        help="float64, float32, bfloat16, float16, or all that a device has",
    ),
    OptionWords(
        name="flags",
        word="flag",
        metavar="NAME=VALUE",
        default=(),
        kind="several",
        unset="torch's own",
        help="set a flag of torch that changes numbers, such as tf32=on or autocast=bfloat16",
    ),
    OptionWords(
        name="contract",
        metavar="VERSION",
        default=CONTRACT_VERSION,
        help="which version of the contract: 'gradconform list --contract VERSION' lists its checks",
    ),
    OptionWords(
        name="profile", metavar="PROFILE", default="standard", help="how much of the contract: quick, standard or full"
    ),
    OptionWords(
        name="checks", metavar="GLOB", default=(), kind="several", unset="all", help="only the checks whose id matches"
    ),
    OptionWords(
        name="exclude_checks", metavar="GLOB", default=(), kind="several", help="leave out the checks whose id matches"
    ),
    OptionWords(
        name="skip_operations",
        metavar="FILE",
        default=(),
        kind="paths",
        help="leave out the operations that a list names for the device and dtype, in the form of torch's device "
        "tests or a plain one; a .py file is executed, a .json file is read",
    ),
    OptionWords(name="seed", metavar="N", default=DEFAULT_SEED, help="what all values are drawn from"),
    OptionWords(name="strict", default=False, kind="switch", help="let a failed SHOULD decide the verdict as well"),
    OptionWords(
        name="probe",
        default=False,
        kind="switch",
        help="try also what the target does not claim; profile full always does",
    ),
    OptionWords(
        name="require_device_execution",
        metavar="PERCENT",
        help="fail a check of which less than PERCENT of the operations ran on the device, 100 for no fall back at all",
    ),
    OptionWords(
        name="max_crashes",
        metavar="N",
        default=20,
        help="run no more after N checks that ended or hung their process, where checks run in processes of their own",
    ),
    OptionWords(
        name="schedule",
        metavar="FILE.csv",
        default=(),
        kind="paths",
        help="judge the pipeline schedule of a CSV file in torch's format, a row per rank, in place of the contract",
    ),
    OptionWords(
        name="stage",
        metavar="STAGE",
        default=(),
        kind="several",
        help="judge TARGET on a stage of yours, named as a target is, in place of the contract",
    ),
    OptionWords(
        name="operation",
        metavar="NAME",
        default=(),
        kind="several",
        help="judge TARGET on stages of one operation of torch each, in place of the contract: a name, a glob, or all",
    ),
    OptionWords(
        name="oracle",
        metavar="NAME",
        default=(),
        kind="several",
        help="check the device on each operation without a second one: layout, finite-differences, additive, or all",
    ),
    OptionWords(
        name="block",
        metavar="NAME",
        default=(),
        kind="several",
        help="judge TARGET on blocks of models, in place of the contract: a name, a glob, or all; --sizes says how "
        "large",
    ),
    OptionWords(
        name="sizes",
        metavar="SIZES",
        default="small",
        help="up to which size blocks are tried: small (32K values), large (1M) or full (2G, as far as memory goes)",
    ),
    OptionWords(
        name="setting",
        metavar="NAME",
        default=(),
        kind="several",
        help="judge TARGET under settings of torch, such as autocast-bfloat16 or deterministic, in place of the "
        "contract: a name, a glob, or all",
    ),
    OptionWords(
        name="fault",
        metavar="NAME",
        default=(),
        kind="several",
        help="check that known faults are found here, in place of the contract: a name, a glob, all or none",
    ),
    OptionWords(
        name="with_contract", default=False, kind="switch", help="judge the contract too, beside whatever else is named"
    ),
    OptionWords(
        name="shard",
        metavar="I/N",
        unset="all",
        help="run part I of N of the plan, such as 1/4; 'gradconform merge' puts the N reports together",
    ),
    OptionWords(
        name="plan",
        metavar="FILE",
        unset="the user's cache",
        help="read what the plan measured of operation samples from FILE, and write there what is new: for the shards "
        "of one run",
    ),
    OptionWords(
        name="waivers",
        metavar="FILE",
        unset="gradconform-waivers.toml, if it is there",
        help="failures that are expected, see 'gradconform waivers --help'",
    ),
)

#: Every option of a run by its name, in the order in which help shows them.
RUN_OPTION_WORDS: Mapping[str, OptionWords] = {one.name: one for one in _ALL}
