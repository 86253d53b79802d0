"""Targets that cannot be found, imported or driven: what, what was expected, and the nearest names that exist."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from gradconform.target import resolve as resolve_module
from gradconform.target.lookup import TargetError
from gradconform.target.resolve import resolve


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def refusal(target: object, **files: str) -> str:
    """Write ``files`` and return what is said of ``target``."""
    for name, text in files.items():
        Path(f"{name}.py").write_text(text, encoding="utf-8")
    before = set(sys.modules)
    with pytest.raises(TargetError) as raised:
        resolve(target)
    left = {name for name in set(sys.modules) - before if name.startswith("gradconform_target")}
    assert not left or files
    return str(raised.value)


def test_a_misspelt_registered_name_is_refused_with_the_nearest_names() -> None:
    assert_expected_inline(
        refusal("refrence-split"),
        """target 'refrence-split' is not a registered name, and module 'refrence-split' cannot be imported; nearest registered names: reference-split. Expected a registered name, package.module[:object] or path/to/file.py[:object]""",  # noqa: E501 (as it is shown)
    )


def test_a_missing_module_is_named() -> None:
    assert_expected_inline(
        refusal("gc_absent.stage").split("; ", 1)[0],
        """target 'gc_absent.stage' is not a registered name, and module 'gc_absent' cannot be imported""",
    )
    assert refusal("gc_absent.stage").endswith(
        "Expected a registered name, package.module[:object] or path/to/file.py[:object]"
    )


def test_a_missing_submodule_is_named_in_full() -> None:
    assert "target 'gradconform.absent': gradconform has no module 'absent'; it defines adapter, " in refusal(
        "gradconform.absent"
    )


def test_a_module_with_a_missing_dependency_names_it() -> None:
    assert_expected_inline(
        refusal("gc_needs", gc_needs="import gc_not_there\n"),
        """target 'gc_needs' could not be imported: it needs 'gc_not_there', which is not installed; install it""",
    )


def test_a_module_that_fails_to_import_gives_the_reason() -> None:
    told = refusal("gc_fails", gc_fails="raise RuntimeError('no GPU here')\n")
    assert told.startswith("target 'gc_fails' could not be imported: RuntimeError: no GPU here (")
    assert told.endswith("gc_fails.py, line 1)")


@pytest.mark.parametrize("target", ["gc_exits", "gc_exits.py"])
def test_a_script_that_exits_on_import_is_refused(target: str) -> None:
    assert refusal(target, gc_exits="import sys\nsys.exit(0)\n").endswith("line 2)")


def test_a_file_that_fails_to_load_gives_the_reason_and_leaves_no_module() -> None:
    before = set(sys.modules)
    assert_expected_inline(
        refusal("gc_broken.py", gc_broken="def stage_backward(:\n").split(" (gc_broken", 1)[0],
        """target 'gc_broken.py' could not be loaded: SyntaxError: invalid syntax""",
    )
    assert not [name for name in set(sys.modules) - before if name.startswith("gradconform_target")]


def test_a_missing_file_is_refused_with_the_nearest_files() -> None:
    assert_expected_inline(
        refusal("gc_stagee.py:adapter", gc_stage="", other=""),
        """target 'gc_stagee.py:adapter': the file 'gc_stagee.py' does not exist; nearest files: gc_stage.py""",
    )


def test_a_missing_attribute_is_refused_with_the_nearest_names() -> None:
    assert_expected_inline(
        refusal("gc_named:Adaptor", gc_named="class Adapter: ...\nclass Other: ...\n"),
        """target 'gc_named:Adaptor': gc_named has no 'Adaptor'; nearest names: Adapter""",
    )


def test_a_module_without_functions_is_refused_with_the_expected_forms() -> None:
    assert_expected_inline(
        refusal("gc_empty", gc_empty="x = 1\n"),
        """target 'gc_empty' (module) has no stage_backward and is not an adapter. Expected torch's three functions, stage_backward alone, or an adapter. For an engine or another interface, write an adapter: see docs/write-an-adapter.md""",  # noqa: E501 (as it is shown)
    )


@pytest.mark.parametrize(("target", "kind"), [(7, "int"), ({"stage_backward": print}, "dict"), (None, "NoneType")])
def test_an_object_that_is_not_a_target_is_named_by_its_type(target: object, kind: str) -> None:
    assert f"({kind}) has no stage_backward and is not an adapter" in refusal(target)


def test_half_of_a_split_backward_is_refused() -> None:
    assert_expected_inline(
        refusal(types.SimpleNamespace(stage_backward_input=print)),
        """target 'SimpleNamespace' has stage_backward_input but no stage_backward_weight; expected stage_backward or both stage_backward_input and stage_backward_weight""",  # noqa: E501 (as it is shown)
    )


def test_a_function_with_another_signature_is_refused_with_it() -> None:
    assert_expected_inline(
        refusal("gc_signature", gc_signature="def stage_backward(outputs, *, grads):\n    ...\n"),
        """target 'gc_signature': stage_backward(outputs, *, grads) cannot be called with 3 positional arguments: too many positional arguments. Expected the signatures of torch.distributed.pipelining""",  # noqa: E501 (as it is shown)
    )


def test_a_class_whose_methods_need_self_is_refused() -> None:
    source = "class Stage:\n    def stage_backward(self, output, grads, inputs):\n        ...\n"
    assert_expected_inline(
        refusal("gc_methods:Stage", gc_methods=source),
        """target 'gc_methods:Stage': stage_backward(self, output, grads, inputs) cannot be called with 3 positional arguments: missing a required argument: 'inputs'. Expected the signatures of torch.distributed.pipelining""",  # noqa: E501 (as it is shown)
    )


def test_a_function_that_is_not_callable_is_refused() -> None:
    assert_expected_inline(
        refusal(types.SimpleNamespace(stage_backward=None)),
        """target 'SimpleNamespace': stage_backward is NoneType, not a function. Expected the signatures of torch.distributed.pipelining""",  # noqa: E501 (as it is shown)
    )


def test_a_factory_that_needs_arguments_is_refused() -> None:
    assert_expected_inline(
        refusal("gc_factory:make", gc_factory="def make(device):\n    ...\n"),
        """target 'gc_factory:make' is a function make(device). Expected a function stage_backward(stage_output, output_grads, input_values), or a function without arguments that returns an adapter. For an engine or another interface, write an adapter: see docs/write-an-adapter.md""",  # noqa: E501 (as it is shown)
    )


def test_a_factory_that_returns_no_adapter_is_refused() -> None:
    assert_expected_inline(
        refusal("gc_maker:make", gc_maker="def make():\n    return [1]\n"),
        """target 'gc_maker:make' returned a list without name, capabilities, open; an adapter needs name, capabilities, open; see docs/write-an-adapter.md""",  # noqa: E501 (as it is shown)
    )


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ("{'fulll': True}", "unknown capability 'fulll'; did you mean 'full'?"),
        ("{'nested_outputs': False}", "unknown capability 'nested_outputs'; did you mean 'nested_output'?"),
        ("{'qqqq': True}", "unknown capability 'qqqq'; gradconform.Capabilities lists all capabilities"),
        ("{'weight_order': 'lifo'}", "capability weight_order: expected one of none, fifo, any, got 'lifo'"),
        ("{'backward_order': 'none'}", "capability backward_order: expected one of fifo, any, got 'none'"),
        ("{'hooks': True}", "capability hooks: expected one of with_grad, early, never, nowhere, got True"),
        ("{'split': 'no'}", "capability split: expected True or False, got 'no'"),
        ("{'dtypes': 'float32'}", "capability dtypes: expected None or a tuple of names, got 'float32'"),
        ("7", "'int' object is not "),
    ],
)
def test_an_invalid_claim_is_refused(claims: str, said: str) -> None:
    functions = f"def stage_backward(a, b, c):\n    ...\ngradconform_capabilities = {claims}\n"
    assert said in refusal("gc_claims.py", gc_claims=functions)
    adapter = f"name = 'mine'\ncapabilities = {claims}\ndef open(stage, spec):\n    ...\n"
    text = refusal("gc_adapter.py", gc_adapter=adapter)
    assert "invalid capabilities" in text
    assert said in text


@pytest.mark.parametrize("target", ["", ".stage", "a:b:c", "stage.py:", "1+1"])
def test_malformed_target_text_is_refused_with_the_text(target: str) -> None:
    assert repr(target) in refusal(target)


ADAPTER = """
class Adapter:
    name = "mine"
    capabilities = {{}}
    drives = {drives}

    def open(self, stage, spec):
        raise NotImplementedError
"""


@pytest.mark.parametrize(
    ("drives", "wanted"),
    [
        (
            "dict",
            "its adapter's drives is <class 'dict'>; expected the name of the module under test as text, such as 'my_engine.backward'",  # noqa: E501 (as it is shown)
        ),
        (
            "'gradconform_target_gone.backward'",
            "its adapter drives 'gradconform_target_gone.backward', which cannot be imported: No module named 'gradconform_target_gone'",  # noqa: E501 (as it is shown)
        ),
    ],
)
def test_what_an_adapter_drives_is_the_name_of_a_module(drives: str, wanted: str) -> None:
    told = refusal("gradconform_target_driving.py:Adapter", gradconform_target_driving=ADAPTER.format(drives=drives))
    assert told == f"target 'gradconform_target_driving.py:Adapter': {wanted}"


def test_a_copy_of_an_installed_package_has_no_version_of_it() -> None:
    assert resolve_module._distribution_version("pytest", pytest.__file__) == pytest.__version__
    assert resolve_module._distribution_version("pytest", str(Path("pytest", "__init__.py").resolve())) is None
