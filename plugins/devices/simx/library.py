"""Building the library of simx: once per torch, compiler and source, in a folder of the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from gradconform.files.kit_files import cache_folder
from gradconform.torch_releases import private_use
from gradconform.torch_releases.engine import wait_at_exit
from gradconform.torch_releases.names import require

from . import torch_module
from .options import from_arguments, from_environment

SOURCES = Path(__file__).with_name("csrc")
#: A build takes about 15 s; one that takes this long hangs.
TIME_LIMIT = 600

#: Set in the process that builds: one that loads the device at its start would wait there for the build that it is.
_BUILDS = "GRADCONFORM_BUILDS_SIMX"

# Without ninja, which a `pip install` puts where an unactivated environment does not find it.
_SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
build = BuildExtension.with_options(use_ninja=False, no_python_abi_suffix=True)
extension = CppExtension("simx", ["simx.cpp"], extra_compile_args=["-O1", "-g0", *{standard}])
setup(name="simx", ext_modules=[extension], cmdclass={{"build_ext": build}})
"""


#: That of torch's own headers first; 2.10 and before ask for C++17, and their headers are C++20 as well.
_STANDARDS: tuple[list[str], ...] = ([], ["-std=c++20"])


class SimxUnavailableError(ImportError):
    """The device simx cannot be used here; the message gives the reason and what to do."""


def library() -> Path:
    """Return the library, and build it if it does not exist; other processes wait for that build.

    Raises :class:`SimxUnavailableError` with the compiler's output if the build fails.
    """
    folder = cache() / f"simx-{_fingerprint()}"
    built = folder / "simx.so"
    if built.exists():
        return built
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if not built.exists():
                _build(folder, built)
    except OSError as error:
        msg = f"the device simx cannot be built: {error}; TORCH_EXTENSIONS_DIR names the folder to build in"
        raise SimxUnavailableError(msg) from error
    return built


def cache() -> Path:
    """Return the folder of built libraries: TORCH_EXTENSIONS_DIR, else a folder of the user's cache."""
    if named := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(named)
    return cache_folder()


def _fingerprint() -> str:
    """Return a hash of everything that the library depends on: any change builds a new one."""
    digest = hashlib.sha256()
    for part in (torch.__version__, platform.platform(), os.environ.get("CXX", ""), os.environ.get("CXXFLAGS", "")):
        digest.update(f"{part}\n".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path, built: Path) -> None:
    for part in private_use.HEADERS:
        part.find()
    sys.stderr.write(f"building the device simx in {folder}, once; this takes a while\n")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made_in = Path(scratch, "made")
        where = ["--build-lib", str(made_in), "--build-temp", scratch]
        for standard in _STANDARDS:
            output, fine = _run([sys.executable, "-c", _SETUP.format(standard=standard), "build_ext", *where])
            if fine:
                break
        made = next(made_in.glob("simx*"), None) if fine else None
        if made is None:
            raise SimxUnavailableError(_why(output))
        made.replace(built)  # in one step: another process sees all of it or nothing


def _run(command: list[str]) -> tuple[str, bool]:
    try:
        done = subprocess.run(  # noqa: S603 (our own command)
            command,
            cwd=SOURCES,
            env={**os.environ, _BUILDS: "1"},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIME_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"error: nothing built after {TIME_LIMIT} s", False
    return done.stdout, done.returncode == 0


def _why(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line.lower()] or lines[-1:] or ["no output"]
    return (
        f"the device simx cannot be built: {telling[0]}; expected a compiler of C++20 such as g++ (CXX names another); "
        "the device simpy needs none"
    )


NAME = "simx"

_options: dict[str, str] = {}


def load() -> None:
    """Build the library if necessary, and make ``simx`` a device of this process with the SIMX_ options.

    Does nothing if that is done, and in the process that builds. Raises :class:`SimxUnavailableError` if there is no
    compiler, or if the process has another device of this kind, and ``ValueError`` for an unknown option.
    """
    if os.environ.get(_BUILDS):
        return
    require(*private_use.IN_CPP)
    taken = private_use.TAKEN.find()()  # torch has room for one device outside its own tree, and renames it once
    if taken == NAME:
        return
    if taken != "privateuseone":
        msg = f"the device simx cannot be loaded: torch has room for one such device, and this process has {taken!r}"
        raise SimxUnavailableError(msg)
    options = from_environment(os.environ)
    torch.ops.load_library(str(library()))
    configure(**options)
    torch.ops.simx.start()
    rename_privateuse1_backend(NAME)
    private_use.REGISTER.find()(NAME, torch_module)
    generate_methods_for_privateuse1_backend(for_storage=True)
    wait_at_exit()


def configure(**options: str | int) -> None:
    """Set all options of the device, clear those not named, and count its operations from 0 again.

    The number of devices stays unless it is named. Raises ``ValueError`` for an unknown option.
    """
    wanted = from_arguments({"devices": _options.get("devices", "2"), **options})
    torch.ops.simx.configure(wanted)
    _options.clear()
    _options.update(wanted)


@contextlib.contextmanager
def inject(**options: str | int) -> Iterator[None]:
    """Set some options temporarily, in addition to the current ones; operations count from 0 at both ends.

    Raises ``ValueError`` for an unknown option, and for ``devices``, which is fixed once loaded.
    """
    if "devices" in options:
        msg = f"simx has {_options['devices']} devices in this process; set SIMX_DEVICES before it is loaded"
        raise ValueError(msg)
    before = dict(_options)
    configure(**{**before, **options})
    try:
        yield
    finally:
        configure(**before)
