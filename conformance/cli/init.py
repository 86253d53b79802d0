"""The command ``gradconform init``."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from packaging.requirements import Requirement

from gradconform.exits import EXIT_CONFORMS, EXIT_ENVIRONMENT, UsageError
from gradconform.report.lines import Line, wrapped_each
from gradconform.target.loading import TargetNotInstalledError
from gradconform.target.lookup import ENTRY_POINTS, refuse_missing_target, registered
from gradconform.user_input.values import current_folder_first
from gradconform.version import KIT_VERSION
from gradconform.waivers.waiver import DEFAULT_FILE

from .console import complain, width, write, write_text


def init(arguments: argparse.Namespace) -> int:
    """Write the missing files, and print for each file whether it was written."""
    folder = Path.cwd()
    if arguments.new is not None:
        return _start(folder, arguments)
    target = arguments.target or only_target(folder)
    with current_folder_first():
        refuse_missing_target(target, imported=False)
    if target in registered(ENTRY_POINTS):
        _look_for_what_it_drives(target)
    try:
        written = [
            _write_new(folder, path, text) for path, text in starter_files(folder, target, arguments.shards).items()
        ]
    except OSError as error:
        complain(f"cannot write {error.filename}: {error.strerror}")
        return EXIT_ENVIRONMENT
    if any(written):
        write([Line(), *wrapped_each(_next_steps(folder, target), width(), hanging=4)])
    return EXIT_CONFORMS


def _start(folder: Path, arguments: argparse.Namespace) -> int:
    """Write the first file of something new, and print the command that runs it."""
    if arguments.target is not None or arguments.shards != 1:
        arguments.parser.error("--new writes one file; omit TARGET and --shards")
    starter = STARTERS[arguments.new]
    text = (files("gradconform.cli") / "templates" / f"starter_{arguments.new}.py.j2").read_text(encoding="utf-8")
    try:
        written = _write_new(folder, starter.file, text)
    except OSError as error:
        complain(f"cannot write {error.filename}: {error.strerror}")
        return EXIT_ENVIRONMENT
    if written:
        write_text(f"try it: {starter.command}\nthen change what its comments say")
    return EXIT_CONFORMS


def _look_for_what_it_drives(target: str) -> None:
    """Print a note if the library of a registered target is not installed: the files are useful anyway."""
    from gradconform.target.resolve import resolve  # noqa: PLC0415 (it imports torch)

    try:
        resolve(target)
    except TargetNotInstalledError as error:
        complain(f"{error}; the files are written anyway")


def _write_new(folder: Path, name: str, text: str) -> bool:
    """Write a file that does not exist; otherwise change nothing and return False."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        write_text(f"kept  {name}: it already exists")
        return False
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink()  # an incomplete file would be kept the next time
        raise
    write_text(f"wrote {name}")
    return True


def _next_steps(folder: Path, target: str) -> list[str]:
    lines = [f"target {target}; try it: python -m pytest tests/test_stage_backward.py"]
    if installed_from_disk():
        lines.append(
            f"gradconform was installed from this disk: the workflow installs {kit_requirement()!r}; "
            "replace it by a requirement that CI can install"
        )
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    if root != folder:
        lines.append(f"GitHub reads workflows only from the root of a repository: move .github to {root}")
    return lines


_WORKFLOW = ".github/workflows/gradconform.yml"

#: The destination of each template, below the target folder.
FILES = {
    "tests/test_stage_backward.py": "test_stage_backward.py.j2",
    DEFAULT_FILE: "gradconform-waivers.toml.j2",
    _WORKFLOW: "gradconform.yml.j2",
}

#: The actions of the workflow, each pinned to the commit of a release: an attacker could move a tag.
ACTIONS = {
    name: f"actions/{name}@{commit} # {release}"
    for name, (release, commit) in {
        "checkout": ("v7.0.1", "3d3c42e5aac5ba805825da76410c181273ba90b1"),
        "setup-python": ("v7.0.0", "5fda3b95a4ea91299a34e894583c3862153e4b97"),
        "cache": ("v5.0.5", "27d5ce7f107fe9357f9df03efb73ab90386fccae"),
        "cache/restore": ("v5.0.5", "27d5ce7f107fe9357f9df03efb73ab90386fccae"),
        "cache/save": ("v5.0.5", "27d5ce7f107fe9357f9df03efb73ab90386fccae"),
        "upload-artifact": ("v7.0.0", "bbbca2ddaa5d8feaa63e36b76fdaad77386f024f"),
        "download-artifact": ("v8.0.1", "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c"),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Starter:
    """A first file that runs at once, and the command that runs it."""

    file: str
    command: str


#: The first file of each kind of thing that a user may write.
STARTERS = {
    "target": Starter("my_backward.py", "gradconform run my_backward.py --profile quick"),
    "adapter": Starter("my_adapter.py", "gradconform run my_adapter.py:Adapter --profile quick"),
    "runtime": Starter("my_runtime.py", "gradconform pipeline my_runtime.py:Runtime --checks step.ddp"),
    "device": Starter("my_device.py", "gradconform doctor --device cpu --device-plugin my_device"),
    "sharded": Starter("my_sharded_stage.py", "gradconform sharded my_sharded_stage.py:Stage"),
}

_DEFINES_IT = re.compile(r"^def stage_backward\(", re.MULTILINE)
_SKIPPED_FOLDERS = frozenset({"tests", "test", "build", "dist", "site-packages", "node_modules"})


class StarterError(UsageError):
    """Nothing can be set up, since the target is not clear."""


def starter_files(folder: Path, target: str, shards: int = 1) -> dict[str, str]:
    """Return the text of each file by its path below ``folder``; the workflow runs the contract in ``shards`` parts."""
    values = {
        "target": target,
        "requirement": kit_requirement(),
        "torch": _torch_range(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "installs": list(_installs(folder)),
        "shards": shards,
        "reusable": False,
        "expires": dt.date(dt.datetime.now(dt.timezone.utc).year + 1, 1, 31).isoformat(),
    }
    return {path: _rendered(name, values) for path, name in FILES.items()}


def reusable_workflow() -> str:
    """Return the text of the workflow that another repository calls: that of ``gradconform init``, with inputs."""
    values = {
        "requirement": "gradconform",
        "torch": _torch_range(),
        "python": "${{ inputs.python-version }}",
        "python_default": "3.11",
        "installs": ['bash -euo pipefail -c "$INSTALL"'],
        "shards": 1,
        "reusable": True,
    }
    return _rendered(FILES[_WORKFLOW], values)


def _rendered(template: str, values: dict[str, Any]) -> str:
    # No autoescape: values are written as JSON, whose strings are valid in Python and in YAML.
    engine = Environment(
        loader=PackageLoader("gradconform.cli"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (as said above)
        variable_start_string="{=",  # GitHub itself replaces {{ }}
        variable_end_string="=}",
    )
    engine.filters["tojson_text"] = lambda text: json.dumps(text, ensure_ascii=False)
    return engine.get_template(template).render(actions=ACTIONS, **values)


def kit_requirement() -> str:
    """Return pip's requirement for this kit: the commit that it was installed from, or else its version."""
    origin = _origin()
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"gradconform @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f"gradconform=={KIT_VERSION}"


def installed_from_disk() -> bool:
    """Return whether the kit came from a folder or a file of this machine, which no other machine has."""
    return str(_origin().get("url")).startswith("file:")


def _origin() -> dict[str, Any]:
    """Return the installer's record of the kit's origin (PEP 610); empty for a package index."""
    reported = importlib.metadata.distribution("gradconform").read_text("direct_url.json")
    return dict(json.loads(reported)) if reported else {}


def _torch_range() -> str:
    needed = map(Requirement, importlib.metadata.requires("gradconform") or [])
    return next(str(one.specifier) for one in needed if one.name == "torch")


def _installs(folder: Path) -> Iterator[str]:
    if (folder / "requirements.txt").is_file():
        yield "python -m pip install -r requirements.txt"
    if any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")):
        yield "python -m pip install ."


def only_target(folder: Path) -> str:
    """Return the one file or module below ``folder`` that defines ``stage_backward``.

    Raises :class:`StarterError` that names the files if there are several, or the required argument if there is none.
    """
    found = sorted(_defining(folder))
    if len(found) == 1:
        return _named(found[0], folder)
    what = "no file here defines stage_backward"
    if found:
        what = f"several files here define stage_backward: {', '.join(_named(path, folder) for path in found[:5])}"
    msg = f"{what}; name the target, as in: gradconform init mypackage.backward"
    raise StarterError(msg)


def _defining(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        skipped = path.name.startswith("test_") or any(
            part.startswith(".") or part in _SKIPPED_FOLDERS for part in parts
        )
        if not skipped and _DEFINES_IT.search(path.read_text(encoding="utf-8", errors="replace")):
            yield path


def _named(path: Path, folder: Path) -> str:
    """Return the import name of a module in a package, or the path of any other file."""
    top = path.parent
    while top != folder and (top / "__init__.py").is_file():
        top = top.parent
    if top == path.parent or top not in {folder, folder / "src"}:
        return path.relative_to(folder).as_posix()
    inner = path.relative_to(top).with_suffix("").parts
    return ".".join(inner[:-1] if inner[-1] == "__init__" else inner)
