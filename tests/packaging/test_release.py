"""What a release is made of: the sdist holds the repository, the wheel the package, and neither anything else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.version import KIT_VERSION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from conftest import Release

ROOT = Path(__file__).parents[2]
TOP = {
    "conformance": "gradconform",
    **{name: f"gradconform/{name}" for name in ("bench", "fixtures", "plugins", "reference")},
}
NAMED = f"gradconform-{KIT_VERSION}"
#: What setuptools adds to an sdist and to a wheel.
OF_SDIST = {"PKG-INFO", "setup.cfg"} | {
    f"gradconform.egg-info/{name}"
    for name in ("PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt")
}
OF_WHEEL = {
    f"{NAMED}.dist-info/{name}"
    for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
}


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def metadata_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        return HeaderParser().parsestr(archive.read(f"{NAMED}.dist-info/METADATA").decode())


def test_the_sdist_contains_exactly_the_files_of_the_repository(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
        assert {member.name.partition("/")[0] for member in archive} == {NAMED}
    assert names - OF_SDIST == files_below(release.source)
    assert names >= OF_SDIST


def test_the_wheel_contains_exactly_the_files_of_the_package(release: Release) -> None:
    package = {
        f"{import_path}/{name}" for folder, import_path in TOP.items() for name in files_below(release.source / folder)
    }
    with zipfile.ZipFile(release.wheel) as archive:
        assert set(archive.namelist()) == package | OF_WHEEL


def test_the_sdist_and_the_checkout_build_the_same_wheel(release: Release, wheel: Path) -> None:
    contents = []
    for path in (release.wheel, wheel):
        with zipfile.ZipFile(path) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")})
    assert contents[0] == contents[1]
    assert release.wheel.name == wheel.name == f"{NAMED}-py3-none-any.whl"


def test_twine_check_passes_for_sdist_and_wheel(release: Release) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(release.sdist), str(release.wheel)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={"NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_package_metadata_is_complete(release: Release) -> None:
    told = metadata_of(release.wheel)
    assert (told["Name"], told["Version"]) == ("gradconform", KIT_VERSION)
    assert (told["License-Expression"], told["License-File"]) == ("BSD-3-Clause", "LICENSE")
    assert told["Description-Content-Type"] == "text/markdown"
    assert len(told["Keywords"].split(",")) >= 5
    assert len(told["Summary"]) <= 200
    known = pytest.importorskip("trove_classifiers", reason="`pip install --group dev` brings it").classifiers
    assert [one for one in told.get_all("Classifier") if one not in known] == []


def test_sdist_and_wheel_contain_no_path_of_the_build_machine(release: Release) -> None:
    own = str(release.source.parent).encode()
    with zipfile.ZipFile(release.wheel) as archive:
        assert [name for name in archive.namelist() if own in archive.read(name)] == []
    with tarfile.open(release.sdist) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        assert [name for name, file in files.items() if file is not None and own in file.read()] == []


def test_version_changelog_and_citation_name_one_release() -> None:
    newest = re.search(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert (newest[1], newest[2]) == (KIT_VERSION, re.findall(r"^date-released: (.*)$", cited, re.MULTILINE)[0])
    assert re.findall(r"^version: (.*)$", cited, re.MULTILINE) == [KIT_VERSION]


def test_the_citation_has_the_required_fields() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with --group dev")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors", "version", "date-released", "license"} <= set(cited)
    assert cited["license"] == project["license"]
    assert all(author["name"] for author in cited["authors"])


def test_the_release_checklist_names_existing_files_and_commands() -> None:
    text = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:conformance|tests|docs|\.ci)/[\w./-]+)`", text)
    assert len(paths) >= 3
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert "python -m build --outdir dist" in text
    assert "python -m twine check --strict dist/*" in text
