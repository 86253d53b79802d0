"""Targets: every form that a user can name one in, and what is said of where it came from."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from gradconform.adapter import Capabilities, StageSpec
from gradconform.plugins.adapters import torch_functions
from gradconform.reference import split
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.resolve import Target, registered_targets, resolve
from gradconform.torch_releases.edges import EDGE

FULL = "def stage_backward(stage_output, output_grads, input_values):\n    ...\n"
SPLIT = (
    "def stage_backward_input(outputs, output_grads, input_values, weights):\n    ...\n"
    "def stage_backward_weight(weights, param_groups):\n    ...\n"
)
ADAPTER = (
    "from gradconform.adapter import Capabilities\n"
    "class Mine:\n    name = 'mine'\n    capabilities = Capabilities(split=False)\n"
    "    def open(self, stage, spec):\n        ...\n"
)
SOURCE = f"""__version__ = "1.2.3"
{FULL}{SPLIT}{ADAPTER}
made = Mine()
def make():
    return Mine()
class Functions:
    stage_backward = staticmethod(stage_backward)
class outer:
    inner = Functions
"""


class Mine:
    """An adapter of the smallest size."""

    name = "mine"
    capabilities = Capabilities(split=False)

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return plain autograd."""
        return AutogradSession(stage, spec)


class Bound:
    """A namespace of methods: bound ones are called as functions are."""

    def stage_backward(self, stage_output: object, output_grads: object, input_values: object) -> None:
        """Do nothing."""


class Static:
    """A namespace of static methods, given as a class."""

    @staticmethod
    def stage_backward(stage_output: object, output_grads: object, input_values: object) -> None:
        """Do nothing."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "gc_target_package"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "7.0"\n', encoding="utf-8")
    (package / "stage.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["torch", "autograd", "reference-split"])
def test_a_registered_name_is_a_target(name: str) -> None:
    assert name in registered_targets()
    assert resolve(name).text == name


def test_target_torch_is_the_code_of_the_installed_torch() -> None:
    target = resolve("torch")
    assert isinstance(target.adapter, FunctionsAdapter)
    assert target.adapter.functions["stage_backward"] is torch_functions.stage_backward
    assert target.file is not None
    assert target.file.endswith("torch/distributed/pipelining/_backward.py")
    assert target.sha256 == hashlib.sha256(Path(target.file).read_bytes()).hexdigest()
    assert str(target.version).startswith("2.")
    assert not target.own_adapter


@pytest.mark.parametrize(
    ("text", "own_adapter"),
    [
        ("gc_target_package.stage", False),
        ("gc_target_package.stage:made", True),
        ("gc_target_package.stage:Mine", True),
        ("gc_target_package.stage:make", True),
        ("gc_target_package.stage:Functions", False),
        ("gc_target_package.stage:outer.inner", False),
        ("gc_target_package/stage.py", False),
        ("gc_target_package/stage.py:made", True),
        ("gc_target_package/stage.py:Mine", True),
        ("gc_target_package/stage.py:make", True),
        ("./gc_target_package/stage.py:outer.inner", False),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_target_is_found_by_module_or_file_and_object(text: str, *, own_adapter: bool) -> None:
    target = resolve(text)
    assert target.text == text
    assert target.own_adapter == own_adapter
    assert target.name == ("mine" if own_adapter else text)
    assert target.capabilities.full
    assert target.capabilities.split == text.endswith(("stage", "stage.py"))
    assert target.file is not None
    assert Path(target.file).samefile("gc_target_package/stage.py")
    assert target.sha256 == hashlib.sha256(SOURCE.encode()).hexdigest()
    assert target.version == ("1.2.3" if ".py" in text else "7.0")


@pytest.mark.parametrize("installed", [False, True])
def test_a_target_without_a_version_has_that_of_its_distribution_if_one_is_installed_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, installed: bool
) -> None:
    place = folder / "site"
    (place / "gc_unversioned").mkdir(parents=True)
    (place / "gc_unversioned" / "__init__.py").write_text(FULL, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    known = place / "gc_unversioned-3.4.dist-info"
    if installed:
        known.mkdir()
        (known / "METADATA").write_text("Metadata-Version: 2.1\nName: gc-unversioned\nVersion: 3.4\n", encoding="utf-8")
        (known / "top_level.txt").write_text("gc_unversioned\n", encoding="utf-8")
    else:  # the files of all distributions are read only if one of them may have the target
        monkeypatch.delattr("importlib.metadata.packages_distributions")
    assert resolve("gc_unversioned").version == ("3.4" if installed else None)


def test_a_file_can_import_its_neighbours_and_sys_path_is_restored(folder: Path) -> None:
    (folder / "beside_gc.py").write_text(FULL, encoding="utf-8")
    sub = folder / "sub"
    sub.mkdir()
    (sub / "near_gc.py").write_text(FULL, encoding="utf-8")
    (sub / "uses.py").write_text("from near_gc import stage_backward\n", encoding="utf-8")
    before = list(sys.path)
    assert resolve("sub/uses.py").capabilities.full
    assert sys.path == before


def objects() -> dict[str, tuple[object, bool, bool]]:
    full_only = types.SimpleNamespace(stage_backward=split.stage_backward)
    all_three = types.SimpleNamespace(
        stage_backward=split.stage_backward,
        stage_backward_input=split.stage_backward_input,
        stage_backward_weight=split.stage_backward_weight,
    )
    split_only = types.SimpleNamespace(
        stage_backward_input=split.stage_backward_input, stage_backward_weight=split.stage_backward_weight
    )
    return {
        "adapter": (Mine(), True, False),
        "adapter class": (Mine, True, False),
        "factory": (lambda *_: Mine(), True, False),
        "module": (split, True, True),
        "three functions": (all_three, True, True),
        "stage_backward only": (full_only, True, False),
        "split only": (split_only, False, True),
        "instance with methods": (Bound(), True, False),
        "class with static methods": (Static, True, False),
    }


@pytest.mark.parametrize("form", objects())
def test_an_object_is_a_target(form: str) -> None:
    given, full, is_split = objects()[form]
    capabilities = resolve(given).capabilities
    assert (capabilities.full, capabilities.split) == (full, is_split)
    assert capabilities.mixed == ((full and is_split) or "adapter" in form or form == "factory")


def test_a_mapping_of_claims_is_read_as_capabilities() -> None:
    target = resolve(AutogradAdapter())
    assert target.own_adapter
    assert target.capabilities == Capabilities(
        none_output_grad=True, param_groups=True, edge_roots=EDGE.there(), grad_dtype=True
    )


def test_a_namespace_can_claim_more_and_less() -> None:
    claims = {"none_output_grad": True, "view_output": False}
    target = resolve(types.SimpleNamespace(stage_backward=split.stage_backward, gradconform_capabilities=claims))
    assert target.capabilities.none_output_grad
    assert not target.capabilities.view_output


def test_further_names_can_be_registered_as_objects_or_as_text() -> None:
    extra = {"mine": Mine(), "also-mine": "gradconform.reference.split"}
    assert resolve("mine", extra).text == "mine"
    assert resolve("mine", extra).own_adapter
    assert resolve("also-mine", extra).capabilities.split


def test_a_resolved_target_is_returned_unchanged() -> None:
    target = resolve("torch")
    assert isinstance(target, Target)
    assert resolve(target) is target
