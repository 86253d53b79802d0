from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from gradconform import exits
from gradconform.adapter import NotInstalledError, needed
from gradconform.target.loading import TargetNotInstalledError
from gradconform.target.resolve import registered_targets, resolve

#: A registered target by the package it drives.
LIBRARIES = {
    name: library
    for name, library in {
        "d9d": "d9d",
        "deepspeed": "deepspeed",
        "fairscale": "fairscale",
        "megatron-core": "megatron",
        "torchgpipe": "torchgpipe",
        "torchpippy": "pippy",
    }.items()
    if name in registered_targets()
}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Make the library of a target one that cannot be imported."""
    name = str(request.param)
    home = registered_targets()[name].partition(":")[0]
    for loaded in list(sys.modules):
        if loaded == home or loaded.partition(".")[0] == LIBRARIES[name]:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    return name


@pytest.mark.parametrize("absent", LIBRARIES, indirect=True)
def test_a_missing_library_is_unsupported_and_the_install_command_is_shown(absent: str) -> None:
    with pytest.raises(TargetNotInstalledError) as raised:
        resolve(absent)
    assert str(raised.value).startswith(f"target {absent!r} is unsupported here: ")
    assert "is not installed; install it with: pip install " in str(raised.value)


@pytest.mark.parametrize("command", ["run", "fuzz"])
def test_a_missing_library_gives_the_environment_exit_code(command: str, tmp_path: Path) -> None:
    shadow = "raise ModuleNotFoundError(\"No module named 'torchgpipe'\", name='torchgpipe')"
    (tmp_path / "torchgpipe.py").write_text(shadow, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", command, "torchgpipe"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (exits.EXIT_ENVIRONMENT, "")
    assert_expected_inline(
        done.stderr.strip(),
        """gradconform: target 'torchgpipe' is unsupported here: torchgpipe is not installed; install it with: pip install 'gradconform[torchgpipe]'""",  # noqa: E501 (as it is shown)
    )


def test_an_import_error_other_than_a_missing_module_is_raised_unchanged() -> None:
    with pytest.raises(ImportError) as raised, needed("library", "pip install library"):
        raise ImportError("libcudart.so: cannot open shared object file")  # noqa: EM101, TRY003 (as an import says it)
    assert not isinstance(raised.value, NotInstalledError)


def test_a_module_missing_from_a_library_is_named() -> None:
    with (
        pytest.raises(NotInstalledError, match=r"library \(einops\) is not installed"),
        needed("library", "pip install x"),
    ):
        raise ModuleNotFoundError(name="einops")
