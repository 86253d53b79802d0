"""What is said to who uses the command wrongly: the value, what was expected, and what to do next."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.cli.console import complain
from gradconform.target.lookup import Named, TargetError, refuse_missing
from gradconform.user_input.values import current_folder_first

Command = Callable[..., Any]

FILES = {
    "mylib.py": "import torch\n\ndef backward(outputs, grads, inputs):\n    g = 1\n    return g\n",
    "pkg/__init__.py": "",
    "pkg/backward.py": "def fused(): pass\n",
    "raises.py": "import torch\n\ndef load():\n    raise RuntimeError('no GPU here')\n\nload()\n",
    "engine.py": (
        "class Engine:\n    def __init__(self, model, config): ...\n    def train_batch(self, batches): ...\n"
        "class Nameless:\n    capabilities = {'full': True}\n    def open(self, stage, spec): ...\n"
        "nameless = Nameless()\nnothing = object()\n"
    ),
    "text.py": "def stage_backward(outputs, grads, inputs):\n    return 'done'\n",
    "yields.py": "def stage_backward(outputs, grads, inputs):\n    yield None\n",
    "waits.py": "async def stage_backward(outputs, grads, inputs):\n    return ()\n",
    "corrupt.json": "{\n",
    "waivers.toml": (
        '[[waiver]]\ncheck = "full.*"\nverdict = "eror"\nreason = ""\nissue = "x"\nowner = "y"\nexpires = 2020-01-01\n'
    ),
}

NEITHER = "has no stage_backward and is not an adapter"
LEADS = "write an adapter: see docs/write-an-adapter.md"
ADAPTER = "an adapter needs name, capabilities, open; see docs/write-an-adapter.md"
FORMS = "expected package.module[:object] or path/to/file.py[:object]"

#: What is typed, and what is said.
WRONG: dict[tuple[str, ...], str] = {
    ("replay", "linear-3d", "torch"): "has no check 'linear-3d'; nearest: full.gradients.linear-3d, ",
    ("explain", "linear-3d"): "no check has the id 'linear-3d'; nearest: full.gradients.linear-3d, ",
    ("run", "."): f"target '.' is a folder; {FORMS}; it contains engine.py, mylib.py, raises.py, text.py, ",
    ("run", "pkg/"): f"target 'pkg/' is a folder; {FORMS}; it contains __init__.py, backward.py",
    ("run", "pkg"): f"target 'pkg' (module) {NEITHER}",
    ("run", "mylib"): f"target 'mylib' (module) {NEITHER}; it defines backward. Expected torch's",
    (
        "run",
        "mylib.backwrd",
    ): "target 'mylib.backwrd': mylib is a module, not a package; did you mean mylib:backward?",
    ("run", "mylib.nope"): "target 'mylib.nope': mylib is a module, not a package; it defines backward",
    ("run", "mylib:nope"): "target 'mylib:nope': mylib has no 'nope'; it defines backward",
    ("run", "mylib:bakward"): "target 'mylib:bakward': mylib has no 'bakward'; nearest names: backward",
    ("run", "mylib:backward"): (
        "target 'mylib:backward' is a function backward(outputs, grads, inputs). Expected a function "
        "stage_backward(stage_output, output_grads, input_values), or a function without arguments that"
    ),
    ("run", "pkg.backwrd"): "target 'pkg.backwrd': pkg has no module 'backwrd'; nearest names: backward",
    ("run", "pkg/backward"): "but the file pkg/backward.py exists; use that name",
    ("run", "mylb"): "nearest modules in this folder: mylib. Expected a registered name, package.module[:object]",
    ("run", "trch"): "is not a registered name, and module 'trch' cannot be imported; nearest registered names: torch",
    ("run", "mylb.py"): "target 'mylb.py': the file 'mylb.py' does not exist; nearest files: mylib.py",
    ("run", "raises"): "target 'raises' could not be imported: RuntimeError: no GPU here ({folder}/raises.py, line 4)",
    ("run", "raises.py"): "could not be loaded: RuntimeError: no GPU here ({folder}/raises.py, line 4)",
    ("run", "engine:Engine"): LEADS,
    ("run", "engine:Nameless"): f"target 'engine:Nameless' returned a Nameless without name; {ADAPTER}",
    ("run", "engine:nameless"): f"(Nameless) has capabilities and open but no name; {ADAPTER}",
    ("run", "engine:nothing"): f"target 'engine:nothing' (object) {NEITHER}",
    (
        "run",
        "yields.py",
    ): "stage_backward is a generator function; expected a plain function",
    (
        "run",
        "waits.py",
    ): "stage_backward is a coroutine function; expected a plain function",
    ("run", "torch", "--dtype", "fp32"): (
        "unsupported dtype 'fp32' (did you mean float32?); expected one of float64, float32, bfloat16, float16, or all"
    ),
    ("run", "torch", "--dtype", "flot32"): "did you mean float32?",
    ("run", "torch", "--dtype", "float8_e4m3fn"): "float16, or all. A parameter in float8 has no gradient in",
    ("run", "torch", "--dtype", "int8"): "Integers have no gradients",
    ("run", "torch", "--dtype", "complex64"): "Complex stages run in complex64 with float32",
    (
        "run",
        "torch",
        "--checks",
        "nosuch.*",
    ): "check pattern 'nosuch.*' matches no check; the areas are accumulate, cal",
    ("run", "torch", "--checks", "full.nosuch"): "check pattern 'full.nosuch' matches no check; nearest: full.",
    ("run", "torch", "--waivers", "waivers.toml"): (
        "gradconform: waivers.toml: entry 1 (full.*): reason: expected some text, got ''\n"
        "waivers.toml: entry 1 (full.*): verdict: expected one or several of mismatch, "
    ),
    ("run", "--resume", "corrupt.json"): "expected a record that --ndjson wrote",
    ("run", "--resume", "right.json"): "'right.json' is a report that --json wrote; name the file of --ndjson; a",
    ("report", "run.ndjson"): (
        "run.ndjson: contains the records of a run, as --ndjson writes them; 'gradconform run --resume run.ndjson "
        "--json report.json' makes a report from them; expected a report"
    ),
    ("compare", "right.json", "run.ndjson"): "run.ndjson: contains the records of a run",
    ("replay", "right.json"): "right.json is a report; name a check in it: right.json#ID",
    ("replay", "right.json#1"): "right.json: expected a check id, as the report has no failures, got 1",
    ("replay", "full.loss.mlp"): "a check id requires a TARGET: gradconform replay full.loss.mlp TARGET",
    ("replay", "full.loss.mlp", "mylb"): "nearest modules in this folder: mylib",
    ("run", "torch", "--timeout", "5"): "unexpected argument '--timeout'; nearest: --start-timeout, --check-timeout",
    ("replay", "full.loss.mlp", "torch", "--timeout", "5"): "unexpected argument '--timeout'; nearest: --check-timeout",
    ("fuzz", "mylb"): "nearest modules in this folder: mylib",
    ("init", "mylib:nope"): "target 'mylib:nope': mylib has no 'nope'; it defines backward",
    ("verify", "right.json"): "expected a file that 'gradconform bundle' wrote",
    ("stage-object",): "unknown command 'stage-object' (did you mean stage-objects?); expected one of run, ",
}


#: The report and the records of a run, made by the first test that has them.
_OF_RUN: dict[str, str] = {}


@pytest.fixture
def folder(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    if not _OF_RUN:
        names = ("right.json", "run.ndjson")
        command("run", "autograd", "--checks", "full.loss.mlp", "--json", names[0], "--ndjson", names[1])
        _OF_RUN.update({name: (tmp_path / name).read_text(encoding="utf-8") for name in names})
    for name, text in (FILES | _OF_RUN).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_usage_is_refused_with_advice(command: Command, folder: Path, words: tuple[str, ...]) -> None:
    done = command(*words)
    assert (done.code, done.out) == (2, "")
    assert WRONG[words].format(folder=folder) in done.err
    assert "Traceback" not in done.err


@pytest.mark.usefixtures("folder")
def test_a_missing_target_is_refused_without_importing_torch() -> None:
    with_file = ("run", "fuzz", "pipeline", "sharded", "stage-objects", "schedule-text", "replay full.loss.mlp")
    commands = ["run mylb", "run .", *(f"{command} mylb.py" for command in with_file), "pipeline mylb.py:Runtime"]
    code = f"""
import sys
from gradconform.cli import main
for command in {commands}:
    assert main(command.split()) == 2, command
    assert "torch" not in sys.modules, command
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.usefixtures("folder")
def test_a_target_that_returns_text_fails_for_one_cause(command: Command) -> None:
    done = command("run", "text.py", "--checks", "full.loss.*")
    assert done.code == 1
    assert "B raised TypeError: stage_backward returned str; expected one gradient" in " ".join(done.out.split())


@pytest.mark.usefixtures("folder")
def test_a_cpu_index_is_reported_as_the_cpu(command: Command) -> None:
    assert (
        "on cpu:3 (the CPU) float32" in command("run", "autograd", "--device", "cpu:3", "--checks", "full.loss.mlp").out
    )


@pytest.mark.usefixtures("folder")
def test_a_function_named_stage_backward_is_a_target(command: Command) -> None:
    done = command("run", "text.py:stage_backward", "--checks", "full.loss.mlp")
    assert "returned str;" in " ".join(done.out.split())


#: Modules that may have any name: what they hold is not to be read off their source.
OPEN = (
    "def __getattr__(name): return 1",
    "from os.path import *",
    "globals()['x'] = 1",
    "import sys\nsetattr(sys.modules[__name__], 'x', 1)",
    "exec('x = 1')",
    "if True:\n    x = 1",
    "def make():\n    global x\n    x = 1\nmake()",
    "try:\n    import json as x\nexcept ImportError as x: pass",
    "class x: pass",
    "for x in (1,): pass",
    "with open(__file__) as x: pass",
    "(x := 1)",
    "match 1:\n    case x: pass",
    "def broken(:",
)


def refusal(named: Named) -> str | None:
    """Return why a target is refused, None if it is not."""
    try:
        refuse_missing(named)
    except TargetError as error:
        return str(error)
    return None


@pytest.mark.parametrize("source", OPEN)
def test_an_attribute_that_a_module_may_define_is_not_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "open.py").write_text(source, encoding="utf-8")
    assert refusal(Named(f"{tmp_path}/open.py:x", "open")) is None


@pytest.mark.parametrize(
    "name", ["torch.nn", "os.path", "gradconform.fixtures.programs", "torch.nn:functional", "json"]
)
def test_an_importable_module_is_not_refused(name: str) -> None:
    assert refusal(Named(name, name)) is None


def test_a_module_missing_from_its_package_is_refused_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        current_folder_first(),
        pytest.raises(TargetError, match=r"torch\.nn has no module 'modles'; nearest"),
    ):
        refuse_missing(Named("torch.nn.modles", "x"))


@pytest.mark.parametrize("seen", [True, False], ids=["a terminal", "a pipe"])
def test_a_message_fits_a_terminal_and_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch, *, seen: bool) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: seen)
    monkeypatch.setattr(sys, "stderr", stream)
    names = " ".join(f"name{number}" for number in range(40))
    complain(f"{names}\n\n  File 'x.py', line 3")
    told = stream.getvalue()
    assert told.split() == ["gradconform:", *names.split(), "File", "'x.py',", "line", "3"]
    lines = told.splitlines()
    assert (max(map(len, lines)) <= 80, lines[0] == f"gradconform: {names}") == (seen, not seen)
    assert lines[-2:] == ["", "  File 'x.py', line 3"]
