"""Whatever a file holds that somebody has named, the command says what is wrong with it: no crash, no hang."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from gradconform.bundle.archive import unpacked
from gradconform.cli import main
from gradconform.exits import EXIT_KIT, EXIT_USAGE

from .conftest import make_steps
from .damage import bundles, csv_text, damaged, json_text, ndjson_text, odd_values, texts, toml_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Kept = dict[str, bytes]

#: How many damaged files of each kind are tried, in CI and nightly.
EXAMPLES = [60, pytest.param(10_000, marks=[pytest.mark.nightly])]
#: What no file may take of memory beyond torch and what the kit itself needs, in bytes.
MOST = 200 * 2**20

_HERE = "--no-isolation"

#: The commands that read a file of each kind: {} is the file that is damaged, the others are whole.
REPORT = (
    "compare {} {}",
    "compare whole.json {} --format json",
    "compare {} failed.json --format markdown --intersection",
    "merge {} part-2.json",
    "merge part-1.json {} --json merged.json",
    "report {} --markdown -",
    "report {} --html -",
    "report whole.json {} --html page.html --intersection",
    "report {} {} --markdown -",
    "bundle {} -o made.zip",
    "waivers add --from {} --waivers new.toml",
    "waivers prune --from {} --waivers waivers.toml",
    "replay {}#1",
    "replay {}#full.gradients.mlp",
    "replay {}#1 --script script.py",
)
WAYS: dict[str, Sequence[str]] = {
    "whole.json": REPORT,
    "failed.json": REPORT,
    "waived.json": REPORT,
    "part-1.json": REPORT,
    "steps.json": (  # it is replayed on ranks of its own: only the script is written
        "compare {} {}",
        "compare steps.json {} --format json",
        "merge {} part-2.json",
        "report {} --markdown -",
        "report steps.json {} --html page.html",
        "bundle {} -o made.zip",
        "replay {}#1 --script script.py",
        "replay {}#step.plain --script script.py",
    ),
    "run.ndjson": ("bundle whole.json -o made.zip --ndjson {}", f"run --resume {{}} {_HERE}"),
    "cut.ndjson": (
        f"run --resume {{}} {_HERE}",
        f"run --resume {{}} {_HERE} --json resumed.json",
        f"run right.py --ndjson {{}} {_HERE}",
    ),
    "bundle.zip": ("verify {}", "verify {} --target right.py"),
    "waivers.toml": (
        "run wrong.py --list --waivers {}",
        f"run wrong.py {_HERE} --checks full.gradients.mlp --waivers {{}}",
        "waivers add --from failed.json --waivers {}",
        "waivers prune --from waived.json --waivers {}",
        "bundle waived.json -o made.zip --waivers {}",
    ),
    "schedule.csv": (
        f"run right.py {_HERE} --schedule {{}}",
        "run right.py --list --schedule {}",
        "schedule-text torch --schedule {}",
        "pipeline right.py --schedule {} --checks none",
    ),
}


def drawn_ways(name: str) -> st.SearchStrategy[str]:
    """Return ways to read a file of that kind: those that start a process, which takes seconds, once for ten others."""
    return st.sampled_from([way for way in WAYS[name] for _ in range(1 if way.startswith("pipeline") else 10)])


def files(name: str, held: bytes) -> st.SearchStrategy[bytes]:
    """Return damaged files of the kind of that one."""
    if name.endswith(".json"):
        return texts(json.loads(held), json_text)
    if name.endswith(".ndjson"):
        return texts([json.loads(line) for line in held.splitlines()], ndjson_text)
    if name.endswith(".toml"):
        return texts(json.loads(json.dumps(tomllib.loads(held.decode()), default=str)), toml_text)
    if name.endswith(".csv"):
        return texts([*csv.reader(io.StringIO(held.decode()))], csv_text)
    return bundles(unpacked(name))


def peak() -> int:
    """Return the most memory that this process has had since :func:`forget_peak`, in bytes; 0 where nobody says it."""
    if not Path("/proc/self/status").is_file():
        return 0
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def forget_peak() -> None:
    """Let the most memory be what there is now."""
    if Path("/proc/self/clear_refs").is_file():
        Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of what has failed, which it would hide
@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", WAYS)
def test_a_damaged_file_is_read_or_its_error_is_reported(
    name: str, examples: int, valid: Callable[[], Kept], capsys: pytest.CaptureFixture[str]
) -> None:
    kept = valid()
    if name == "steps.json":
        make_steps(kept)
    path = Path(f"damaged{Path(name).suffix}")
    for way in WAYS[name]:
        main(way.replace("{}", name).split())  # what a command needs is loaded, and no memory of the file's

    @settings(max_examples=examples, suppress_health_check=[*HealthCheck], deadline=None, print_blob=True)
    @given(held=files(name, kept[name]), way=drawn_ways(name))
    def attack(held: bytes, way: str) -> None:
        valid()
        path.write_bytes(held)
        words = way.replace("{}", str(path)).split()
        capsys.readouterr()
        forget_peak()
        before = peak()
        code = main(words)
        told = capsys.readouterr()
        note(f"gradconform {' '.join(words)}: {code}\n{told.err[-3000:]}\n{told.out[-1000:]}")
        assert code in range(7)
        assert code != EXIT_KIT
        assert "Traceback" not in told.err
        if (
            code == EXIT_USAGE and words[:2] != ["run", "--resume"] and words[0] != "replay"
        ):  # what they say is then run
            assert path.stem in told.err
        assert peak() - before < MOST  # of this file alone: hypothesis keeps more with each

    attack()


OPTIONS = {
    "gradconform_target": "right.py",
    "gradconform_profile": "full",
    "gradconform_checks": ["full.gradients.m*", "accumulate.*"],
    "gradconform_exclude_checks": "full.gradients.residual",
    "gradconform_seed": "3",
    "gradconform_dtype": ["float32"],
    "gradconform_device": "cpu",
    "gradconform_strict": "true",
    "gradconform_shard": "1/1",
    "gradconform_max_crashes": "2",
    "gradconform_require_device_execution": "50",
    "gradconform_waivers": "waivers.toml",
    "gradconform_contract": "1.0",
    "gradconform_flag": ["tf32=off"],
    "gradconform_schedule": ["schedule.csv"],
    "gradconform_json": "made.json",
}


@st.composite
def configurations(draw: st.DrawFn) -> str:
    """Return a section of TOML in which one or two of some options are damaged."""
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=5, unique=True))
    options = {name: OPTIONS[name] for name in {"gradconform_target", *names}}
    for name in names[:2]:
        options[name] = draw(damaged(options[name]) | odd_values)
    text = f"[tool.pytest.ini_options]\n{toml_text(options)}"
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        assume(condition=False)  # that it is no TOML is found and told by pytest
    return text


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_damaged_configuration_is_read_or_its_error_is_reported(
    examples: int, valid: Callable[[], Kept], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = valid()
    monkeypatch.chdir(pytester.path)
    for name in ("right.py", "waivers.toml", "schedule.csv"):
        Path(name).write_bytes(kept[name])

    @settings(max_examples=examples, suppress_health_check=[*HealthCheck], deadline=None, print_blob=True)
    @given(text=configurations())
    def attack(text: str) -> None:
        Path("pyproject.toml").write_text(text, encoding="utf-8")
        run = pytester.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider")
        told = run.stderr.str() + run.stdout.str()
        note(told)
        assert run.ret in {pytest.ExitCode.OK, pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED}
        assert "Traceback" not in told

    attack()
