from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

ADAPTER = """
from gradconform.reference.autograd import AutogradAdapter

class Own(AutogradAdapter):
    pass

def make():
    return Own()

own = Own()
"""

NAMESPACE = """
import types
from torch.distributed.pipelining import _backward

functions = types.SimpleNamespace(
    stage_backward=_backward.stage_backward,
    stage_backward_input=_backward.stage_backward_input,
    stage_backward_weight=_backward.stage_backward_weight,
)
"""


@pytest.mark.parametrize("target", ["autograd", "reference-split", "torch"])
def test_a_registered_name_is_a_target(command: Command, target: str) -> None:
    done = command("run", target, "--checks", "full.gradients.mlp")
    assert (done.code, done.err) == (5, "")
    assert f"judges {target}" in done.out


@pytest.mark.parametrize("target", ["backward.py", "./backward.py", "backward", "package.backward"])
def test_a_file_or_module_with_stage_backward_alone_is_a_target(
    command: Command, target_file: Command, tmp_path: Path, target: str
) -> None:
    path = target_file()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "backward.py").write_bytes(path.read_bytes())
    done = command("run", target, "--checks", "*.gradients.mlp")
    assert (done.code, done.err) == (5, "")
    assert "1 passed" in done.out
    assert "1  not claimed: split" in done.out


@pytest.mark.parametrize("target", ["own.py:own", "own.py:Own", "own.py:make"])
def test_an_adapter_its_class_and_its_factory_are_targets(command: Command, target_file: Command, target: str) -> None:
    target_file(ADAPTER, "own.py")
    done = command("run", target, "--checks", "*.gradients.mlp")
    assert (done.code, done.err) == (5, "")
    assert f"judges autograd, named as {target}" in done.out


@pytest.mark.parametrize("target", ["functions.py:functions", "torch.distributed.pipelining._backward"])
def test_a_namespace_with_the_three_functions_is_a_target(command: Command, target_file: Command, target: str) -> None:
    target_file(NAMESPACE, "functions.py")
    done = command("run", target, "--checks", "split.gradients.output-view")
    assert (done.code, done.err) == (1, "")
    assert "Can't detach views" in done.out


def test_a_file_target_is_reported_with_its_path(command: Command, target_file: Command) -> None:
    path = target_file()
    assert f"file      {path}" in command("run", "backward.py", "--checks", "full.gradients.mlp").out


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("trch", "nearest registered names: torch"),
        ("no_such_module:thing", "module 'no_such_module' cannot be imported"),
        ("bakward.py", "nearest files: backward.py"),
        ("backward.py:stage_bakward", "nearest names: stage_backward"),
        ("json", "has no stage_backward and is not an adapter"),
    ],
)
def test_a_bad_target_is_refused_with_a_suggestion(
    command: Command, target_file: Command, target: str, told: str
) -> None:
    target_file()
    done = command("run", target)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err


def test_a_target_that_exits_on_import_is_refused(command: Command, target_file: Command) -> None:
    target_file("import sys\nsys.exit(0)\n")
    done = command("run", "backward.py")
    assert (done.code, done.out) == (2, "")
    assert "SystemExit" in done.err


def test_a_target_that_exits_while_judged_fails(command: Command, target_file: Command) -> None:
    target_file("import sys\ndef stage_backward(a, b, c):\n    sys.exit(0)\n")
    done = command("run", "backward.py", "--profile", "quick")
    assert done.code == 1
    assert "raised SystemExit: 0" in done.out
    assert "does NOT conform" in done.last


def test_a_wrong_adapter_is_reported_once_as_an_adapter_error(command: Command, target_file: Command) -> None:
    target_file(
        "from gradconform.reference.autograd import AutogradAdapter\n"
        "class Wrong(AutogradAdapter):\n"
        "    def open(self, stage, spec):\n"
        "        session = super().open(stage, spec)\n"
        "        session.param_grads = dict\n"
        "        return session\n"
    )
    done = command("run", "backward.py:Wrong", "--profile", "quick")
    assert done.code == 7
    assert done.out.count("failed its pre-flight") == 1
    assert "in every check that was tried" in done.out
    assert "error: adapter" in done.last


def test_a_run_restores_the_import_search_path(command: Command, target_file: Command) -> None:
    import sys  # noqa: PLC0415 (what is asked about)

    target_file()
    before = list(sys.path)
    command("run", "backward", "--checks", "full.gradients.mlp")
    assert sys.path == before
