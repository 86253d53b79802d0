"""The names, help words and defaults of the options of every run; this module imports little.

pytest reads them at every start, also without a run. The conversions of their values are in
:mod:`gradconform.run.options`, and the options of a source of checks are in its folder.
"""

from __future__ import annotations

from gradconform.version import CONTRACT_VERSION

from .option import Option

#: The seed of all values if no seed is named.
DEFAULT_SEED = 20

#: The time limit of one check in seconds; a check of the contract takes milliseconds.
CHECK_TIMEOUT = 120.0

#: In the order in which help shows them; the options of sources come before :data:`AFTER_SOURCES`.
RUN_OPTIONS = (
    Option(
        name="target",
        loads_files=True,
        metavar="TARGET",
        help="judge TARGET: a registered name, package.module[:object] or path/to/file.py[:object]",
    ),
    Option(
        name="device",
        metavar="DEVICE",
        default=("cpu",),
        kind="several",
        help="run on DEVICE: cpu, cuda, cuda:1, npu:*, auto, all, or another device that torch or a plugin knows",
    ),
    Option(
        name="device_plugins",
        word="device-plugin",
        metavar="MODULE",
        default=(),
        kind="several",
        help="import MODULE first; it registers a device that torch does not know",
    ),
    Option(
        name="dtype",
        metavar="DTYPE",
        default=("float32",),
        kind="several",
        help="run in DTYPE: float64, float32, bfloat16, float16, or all that the device supports",
    ),
    Option(
        name="flags",
        word="flag",
        metavar="NAME=VALUE",
        default=(),
        kind="several",
        unset="torch's own",
        help="set a torch flag that changes numbers, such as tf32=on or autocast=bfloat16",
    ),
    Option(
        name="contract",
        metavar="VERSION",
        default=CONTRACT_VERSION,
        help="use this version of the contract; 'gradconform list --contract VERSION' lists its checks",
    ),
    Option(
        name="profile",
        metavar="PROFILE",
        default="standard",
        help="run this part of the contract: quick, standard or full",
    ),
    Option(
        name="checks",
        metavar="GLOB",
        default=(),
        kind="several",
        unset="all",
        help="run only the checks whose id matches GLOB",
    ),
    Option(
        name="exclude_checks", metavar="GLOB", default=(), kind="several", help="skip the checks whose id matches GLOB"
    ),
    Option(
        name="skip_operations",
        loads_files=True,
        metavar="FILE",
        default=(),
        kind="paths",
        help="skip the operations that FILE lists for the device and dtype. FILE has the form of torch's device tests "
        "or is a plain list. A .py file is executed, a .json file is read",
    ),
    Option(name="seed", metavar="N", default=DEFAULT_SEED, help="generate all values from this seed"),
    Option(name="strict", default=False, kind="switch", help="let a failed SHOULD check change the verdict too"),
    Option(
        name="probe",
        default=False,
        kind="switch",
        help="also test features that the target does not claim; profile full always does",
    ),
    Option(
        name="require_device_execution",
        metavar="PERCENT",
        help="fail a check if less than PERCENT of its operations ran on the device; 100 allows no CPU fallback",
    ),
    Option(
        name="max_crashes",
        metavar="N",
        default=20,
        help="stop after N checks that crashed or hung their worker process",
    ),
    Option(
        name="with_contract",
        default=False,
        kind="switch",
        help="judge the contract as well when another option replaces it",
    ),
    Option(
        name="shard",
        metavar="I/N",
        unset="all",
        help="run part I of N of the checks, such as 1/4; 'gradconform merge' combines the N reports",
    ),
    Option(
        name="waivers",
        metavar="FILE",
        unset="gradconform-waivers.toml, if it exists",
        help="read the expected failures from FILE; see 'gradconform waivers --help'",
    ),
)

#: The first option that help shows after those of sources.
AFTER_SOURCES = "with_contract"
