from __future__ import annotations

import argparse
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradconform import exits
from gradconform.cli import EXIT_BROKEN_PIPE, main
from gradconform.cli.arguments import parser
from gradconform.cli.parsing import COMMANDS
from gradconform.devices.probe import TIME_LIMIT_VARIABLE
from gradconform.run.run import Run
from gradconform.target.resolve import registered_targets

Command = Callable[..., Any]


def works(parser: argparse.ArgumentParser) -> Iterator[str | None]:
    """Yield what a parser, or each of those below it, names as its work."""
    below = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for action in below:
        for one in action.choices.values():
            yield from works(one)
    if not below:
        yield parser.get_default("command")


@pytest.mark.parametrize("work", sorted(filter(None, set(works(parser())))))
def test_the_implementation_of_each_command_is_a_function(work: str) -> None:
    assert callable(pkgutil.resolve_name(work))


@pytest.mark.parametrize(
    ("error", "code"),
    [(exits.UsageError("no such thing"), exits.EXIT_USAGE), (ValueError("no such thing"), exits.EXIT_KIT)],
    ids=["of the user", "of the kit"],
)
def test_wrong_user_input_gives_2_and_other_value_errors_are_kit_crashes(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: ValueError, code: int
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Run, "run", fails)
    done = command("run", "autograd")
    assert done.code == code
    assert ("error of the kit" in done.err) == ("Traceback" in done.err) == (code == exits.EXIT_KIT)
    assert "no such thing" in done.err


def test_a_crash_of_the_kit_gives_3_with_its_traceback_and_no_verdict(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")  # noqa: EM101, TRY003 (a message as a bug would have it)

    monkeypatch.setattr(Run, "run", crash)
    done = command("run", "autograd")
    assert done.code == exits.EXIT_KIT == 3
    assert "internal error of the kit; there is no verdict on the target" in done.err
    assert "RuntimeError: a bug" in done.err
    assert "conform" not in done.out.replace("gradconform", "")


def test_an_environment_without_torch_gives_4(process: Command, target_file: Command, tmp_path: Path) -> None:
    target_file("raise ImportError('libtorch_cpu.so: cannot open shared object file')", "torch.py")
    done = process("run", "autograd", PYTHONPATH=str(tmp_path))
    assert done.code == exits.EXIT_ENVIRONMENT == 4
    assert "libtorch_cpu.so" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("run",), "the following arguments are required: TARGET"),
        (("rum", "torch"), "unknown command 'rum' (did you mean run?)"),
        (("run", "torch", "--devise", "cpu"), "unexpected argument '--devise'; nearest: --device"),
        (("run", "torch", "--prof", "quick"), "unexpected argument '--prof'"),
        (("run", "torch", "reference-split"), "unexpected argument 'reference-split'"),
    ],
)
def test_invalid_arguments_give_2_with_a_suggestion(command: Command, arguments: tuple[str, ...], told: str) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (exits.EXIT_USAGE, "")
    assert told in done.err
    assert "--help'" in done.err


def test_argument_errors_are_reported_before_torch_is_imported() -> None:
    script = """
import sys
from gradconform.cli import main
mistakes = ["", "rum", "run", "run x --profile x", "run x --seed x", "run x --json no/folder.json", "run x --x"]
codes = {text: main(text.split()) for text in mistakes}
assert set(codes.values()) == {2}, codes
assert main(["--version"]) == main(["run", "--help"]) == 0
heavy = {"torch", "hypothesis", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_piped_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    for name in ("", *COMMANDS):
        main([*filter(None, [name]), "--help"])
    too_wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert too_wide == []


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("list", "--help"), ("explain", "--help")])
def test_the_help_fits_80_columns(command: Command, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert (done.code, done.err) == (0, "")
    assert [line for line in done.out.splitlines() if len(line) > 80] == []


def test_the_help_of_run_names_the_registered_targets_and_the_exit_codes(command: Command) -> None:
    told = command("run", "--help").out
    assert ", ".join(sorted(registered_targets())) in " ".join(told.split())
    assert f"  {exits.EXIT_INTERRUPTED}  interrupted by ctrl-C" in told


@pytest.mark.parametrize("arguments", [("list",), ("run", "autograd", "--checks", "*.mlp", "--json", "report.json")])
def test_a_closed_output_pipe_ends_the_command_silently_and_keeps_the_report(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "gradconform", *arguments],
            cwd=tmp_path,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, "")
    assert (tmp_path / "report.json").exists() == ("--json" in arguments)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize(
    ("log", "told"),
    [
        (subprocess.STDOUT, None),
        (subprocess.PIPE, "gradconform: this machine ran out of a resource: [Errno 28] No space left on device\n"),
    ],
    ids=["of both streams", "of the standard output"],
)
def test_a_full_disk_on_stdout_gives_no_verdict_and_keeps_the_report(
    tmp_path: Path, log: int, told: str | None
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gradconform", "run", "autograd", "--checks", "*.mlp", "--json", "report.json"],
            cwd=tmp_path,
            stdout=full,
            stderr=log,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (exits.EXIT_ENVIRONMENT, told)
    assert (tmp_path / "report.json").exists()


def test_only_exhausted_resources_are_environment_errors() -> None:
    for error in (MemoryError(), OSError(28, "No space left on device"), OSError(24, "Too many open files")):
        assert exits.refusal(error)[1] == exits.EXIT_ENVIRONMENT
    assert exits.refusal(FileNotFoundError(2, "No such file"))[1] == exits.EXIT_KIT


@pytest.mark.parametrize(
    "arguments",
    [
        ("fuzz", "ends.py", "--max-examples", "5"),
        ("replay", "split.gradients.tied-apart", "ends.py"),
        ("run", "ends.py", "--no-isolation"),
        ("schedule-text", "ends.py"),
        ("stage-objects", "ends.py"),
    ],
)
def test_a_target_that_ends_the_command_process_never_gives_exit_0(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(0)\n")
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert "the target ended the process of this command with os._exit(0) before the verdict" in done.stderr


def test_a_signal_that_kills_a_replay_prints_the_stack(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(
        "import ctypes\n\ndef stage_backward(stage_output, output_grads, input_values):\n    ctypes.string_at(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", "replay", "full.gradients.linear-3d", "reads.py"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGSEGV
    assert 'reads.py", line 4 in stage_backward' in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--schedule", "1F1B")])
def test_a_target_that_ends_or_hangs_on_import_is_reported_before_a_pipeline_starts(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(0)\n")
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(10000)\n")
    # Nothing that hangs is early, so its limit may be short wherever this runs.
    told = {"ends.py": ("120", "ended its process with exit code 0"), "hangs.py": ("2", "did not load within 2 s")}
    for target, (limit, words) in told.items():
        done = subprocess.run(
            [sys.executable, "-m", "gradconform", "pipeline", target, *options],
            capture_output=True, text=True, cwd=tmp_path, check=False,
            env={**os.environ, TIME_LIMIT_VARIABLE: limit},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert f"target '{target}' {words}" in done.stderr
