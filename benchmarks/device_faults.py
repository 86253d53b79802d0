"""What the kit says of faulty devices: python benchmarks/device_faults.py [OPTION …], or --planted [FAULT …].

With --planted, each wrong kernel of tests/devices/planted_faults.py replaces the right one on the device of docs/, or
with --device cuda on the GPU, and its operation is judged as by 'gradconform device --operation'. Prints a row per
fault: the kernel, the one reported first, seconds of a core, and the kernel calls compared; and the sums. With
--profile quick or standard it is judged as by a run of all operations in that profile, planned before.

Without it, the fault of the simulated device is an option of simx.

Runs the command on simx:0 in float32 with each option of simx switched on in turn, on part of what it would ask: some
of the contract, six operations, a block at eight sizes, two settings and two known faults. Prints a row per option:
the exit code, and the line of the verdict. What a right device may do as well, such as being slow, is to be "right".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: By option of simx, the variable's value.
VALUES = {
    "devices": "1",
    "memory_limit": "400000",
    "no_memory_stats": "1",
    "no_dtypes": "float32",
    "narrow_float64": "1",
    "no_ops": "aten::mm",
    "cpu_result": "aten::mm",
    "cpu_fallback": "aten::mm",
    "tf32": "1",
    "bfloat16_accumulate": "1",
    "flush_denormals": "1",
    "nondeterministic": "1",
    "wrong": "aten::mm:transpose",
    "wrong_above": "32768",
    "copying_views": "1",
    "mix_with_cpu": "1",
    "one_index": "1",
    "unseeded": "1",
    "slow": "aten::mm:1",
    "lost_at": "3000",
    "hang_at": "3000",
    "abort_at": "3000",
    "segfault_at": "3000",
    "abort_at_exit": "1",
}
#: What shows only on another index, in another dtype, or together with another option.
WHERE = {"one_index": "simx:1"}
DTYPES = {"narrow_float64": "float64", "bfloat16_accumulate": "bfloat16"}
ALSO_SET = {"wrong_above": {"SIMX_WRONG": "aten::mul:index"}}

ARGUMENTS = (
    "--operation", "mm,mul,sum,nn.functional.dropout,nn.functional.layer_norm,sin", "--block", "rms-norm",
    "--setting", "deterministic,float32-high", "--fault", "overwrite,doubled", "--check-timeout", "20",
    "--checks", "*.mlp,ops.*,blocks.*,faults.*,full.gradients.*,state.*",
)  # fmt: skip


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("options", nargs="*", metavar="OPTION")
    parser.add_argument("--planted", action="store_true", help="plant wrong kernels")
    parser.add_argument("--device", default="abacus", help="where --planted plants (default: the device of docs/)")
    parser.add_argument("--profile", choices=("quick", "standard"), help="with --planted, judge as a run of all does")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.planted:
            profile = [f"--profile={given.profile}"] if given.profile else []
            _planted([f"--device={given.device}", *profile, *given.options], Path(folder))
            return
        for option in given.options or VALUES:
            code, verdict = _verdict(option, folder)
            print(f"| `{option}` | {code} | {verdict} |", flush=True)


def write_device(folder: Path) -> None:
    """Write the module of the device in docs/devices.md, ``abacus``, into a folder."""
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- test: file abacus.py -->\n```python\n(.*?)```", page, flags=re.DOTALL)
    (folder / "abacus.py").write_text(code, encoding="utf-8")


def _planted(words: list[str], folder: Path) -> None:
    write_device(folder)
    paths = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.devices.find_planted", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one in found:
        first = one["reported"][0] if one["reported"] else "nothing"
        print(f"| {one['fault']} | `{one['expected']}` | `{first}` | {one['seconds']} | {one['compared']} |")
    first = sum(one["reported"][:1] == [one["expected"]] for one in found)
    seconds, calls = (sum(one[name] for one in found) for name in ("seconds", "compared"))
    slowest = max(one["seconds"] for one in found)
    print(
        f"{first} of {len(found)} found, their kernel first; {seconds:.0f} s, at most {slowest:.1f} s; {calls:,} calls"
    )


def _verdict(option: str, folder: str) -> tuple[int, str]:
    variables = {f"SIMX_{option.upper()}": VALUES[option], **ALSO_SET.get(option, {})}
    words = [WHERE.get(option, "simx:0"), "--dtype", DTYPES.get(option, "float32"), *ARGUMENTS]
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", "device", *words],
        cwd=folder, env={**os.environ, **variables, "COLUMNS": "120"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, (done.stderr.strip() or done.stdout.strip() or "nothing was said").splitlines()[-1]


if __name__ == "__main__":
    main()
