"""Compare the verdicts of two checkouts: python benchmarks/same_verdicts.py BASE NOW [--only NAME ...].

A checkout is a folder with the kit's files and its own environment in .venv. Each command below runs in both, in new
processes, and writes a report. Prints a table in Markdown: the checks of each report, how many have another status or
are in one of them alone, and what `gradconform compare` of NOW says. Lists every difference. Exits with 1 if there is
one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import ENVIRONMENT, measured

_ADAPTERS = (
    "d9d", "deepspeed", "fairscale", "megatron-core", "megatron-core-deallocated", "megatron-core-layers",
    "torch-dw-builder", "torch-stage", "torchgpipe", "torchpippy",
)  # fmt: skip

#: Every command that judges and writes a report, by name.
COMMANDS: dict[str, tuple[str, ...]] = {
    "reference": ("run", "reference-split", "--profile", "standard"),
    "reference-float64": ("run", "reference-split", "--profile", "quick", "--dtype", "float64,bfloat16,float16"),
    "autograd": ("run", "autograd"),
    "torch": ("run", "torch", "--profile", "full"),
    **{adapter: ("run", adapter) for adapter in _ADAPTERS},
    "operations": ("run", "torch", "--operation", "mul", "--operation", "softmax", "--operation", "nn.functional.gelu"),
    "blocks": ("run", "torch", "--block", "attention-causal"),
    "settings": ("run", "torch", "--setting", "all"),
    "device": ("device", "cpu", "--profile", "quick"),
    "steps": ("pipeline", "torch"),
    "steps-megatron": ("pipeline", "megatron-core"),
    "steps-reference": ("pipeline", "reference-runtime"),
    **{f"steps-{runtime}": ("pipeline", runtime) for runtime in ("deepspeed", "fairscale", "torchgpipe")},
    "pipeline-schedules": ("pipeline", "torch", "--schedule", "1F1B", "--schedule", "ZBVZeroBubble"),
    "schedule-text": ("schedule-text", "torch"),
    "stage-objects": ("stage-objects", "torch"),
}


def statuses(checkout: Path, words: tuple[str, ...], report: Path) -> dict[str, str]:
    """Return the status of each check, by id, dtype and device, of a command's report."""
    command = [str(checkout / ".venv" / "bin" / "python"), "-m", "gradconform", *words, "--json", str(report)]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [*command, *(["--no-waivers"] if words[0] == "run" else [])],
            cwd=empty,
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
    if not report.exists():
        print(f"{checkout}: {' '.join(words)} wrote no report, exit code {done.returncode}", file=sys.stderr)
        print(done.stdout[-500:], done.stderr[-500:], sep="\n", file=sys.stderr)
        return {}
    results = json.loads(report.read_text(encoding="utf-8"))["results"]
    return {f"{one['check']} {one['dtype']}": one["status"] for one in results}


def compared(now: Path, reports: tuple[Path, Path]) -> str:
    """Return the last line that ``gradconform compare`` of a checkout prints."""
    words = ("compare", "--intersection", *map(str, reports))  # BASE may have an older contract
    command = [str(now / ".venv" / "bin" / "python"), "-m", "gradconform", *words]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]


def main() -> None:
    """Run the commands, and print the table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, metavar="BASE", help="a folder with its own .venv")
    parser.add_argument("now", type=Path, metavar="NOW", help="another one")
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS), metavar="NAME")
    options = parser.parse_args()
    checkouts = options.base.resolve(), options.now.resolve()
    print("| command | checks | other status | in one alone | compare |\n|---|---:|---:|---:|---|", flush=True)
    differences: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            reports = Path(folder, f"{name}-base.json"), Path(folder, f"{name}-now.json")
            base, now = (
                statuses(checkout, COMMANDS[name], report) for checkout, report in zip(checkouts, reports, strict=True)
            )
            other = [
                f"{name}: {check}: {base[check]}, now {now[check]}"
                for check in base
                if base[check] != now.get(check, base[check])
            ]
            alone = [f"{name}: {check}: only in one" for check in sorted(base.keys() ^ now.keys())]
            line = compared(checkouts[1], reports) if base and now else "no report"
            counts = f"{len(base):,}, {len(now):,} | {len(other)} | {len(alone)}"
            print(f"| `{' '.join(COMMANDS[name])}` | {counts} | {line} |", flush=True)
            differences += other + alone + ([] if base and now else [f"{name}: no report"])
    print("", *differences, "", measured("benchmarks/same_verdicts.py"), sep="\n")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
