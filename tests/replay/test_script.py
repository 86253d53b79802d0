"""Scripts of torch alone: they fail where torch is wrong, and pass with a right implementation in its place."""

import os
import re
from pathlib import Path

import pytest
import torch

from gradconform import Capabilities, contract
from gradconform.devices import tensor_facts
from gradconform.fixtures.random_stages.recipe import RecipeModule
from gradconform.reference import gradients, graph_shape, parameter_uses, recomputed, split, use_plan, weight_pass
from gradconform.replay.judges import beyond
from gradconform.replay.script import Replayed, ScriptError, failing_trial
from gradconform.replay.source import Source, add_stage
from gradconform.run.options import RunOptions
from gradconform.run.run import Run, check_stage_backward
from gradconform.target.resolve import resolve
from gradconform.torch_releases import edges, engine, names, node_hooks, products, saved, storage
from gradconform.trees import leaves

from .conftest import RunWithoutKit

CHECKS = contract.checks_of()


def script_of(run: Run, check: str) -> str:
    item = next(item for item in run.plan.items if item.check.id == check)
    replayed = Replayed(failing_trial(run, item), run.target, item.dtype, item.device, run.options.seed)
    return replayed.text()


#: The modules of the correct split, and what it has of the kit.
OF_THE_SPLIT = (
    split, edges, engine, gradients, graph_shape, tensor_facts, names, node_hooks, products, recomputed, saved, storage,
    use_plan, parameter_uses, weight_pass,
)  # fmt: skip

#: How a package that has nothing of the kit writes that.
WITHOUT_KIT = {
    r"from gradconform\.(torch_releases|devices)\.(\w+) import": r"from .\2 import",
    r"from gradconform\.adapter import UnsupportedError": "UnsupportedError = RuntimeError",
    r"from gradconform\.exits import EXIT_ENVIRONMENT": "EXIT_ENVIRONMENT = 4",
}


@pytest.fixture
def right_split(tmp_path: Path) -> Path:
    """A folder with the kit's correct split backward as the package ``right_split``, which needs nothing of the kit."""
    package = tmp_path / "right_split"
    package.mkdir()
    for module in OF_THE_SPLIT:
        name = "__init__" if module is split else module.__name__.rpartition(".")[2]
        text = Path(module.__file__).read_text(encoding="utf-8")
        for line, instead in WITHOUT_KIT.items():
            text = re.sub(line, instead, text)
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="scripts are run in forks")
@pytest.mark.parametrize(
    ("checks", "every"), [("split.*", 6), pytest.param(None, 1, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_a_script_of_each_torch_failure_fails_and_passes_with_a_right_implementation(
    right_split: Path, checks: str | None, every: int, run_without_kit: RunWithoutKit
) -> None:
    of_all = [result.check for result in check_stage_backward("torch", checks=checks) if result.status == "failed"]
    failed = of_all[::every]
    run = Run(RunOptions.of("torch", profile="full", checks=failed))
    texts = [script_of(run, check) for check in failed]
    of_torch = run_without_kit(*((text, ()) for text in texts), folder=right_split)
    of_right = run_without_kit(*((text, ("right_split",)) for text in texts), folder=right_split)
    wrong = {
        check: (one, other)
        for check, one, other in zip(failed, of_torch, of_right, strict=True)
        # torch may warn before what is printed
        if (one[0], other[0]) != (1, 0) or "expected" not in one[1] or "\nright: " not in f"\n{other[1]}"
    }
    assert not wrong
    assert len(of_all) > (60 if checks is None else 30)  # a script of nothing would be right as well


def test_a_script_retains_the_graph_in_w_if_the_check_does(right_split: Path, run_without_kit: RunWithoutKit) -> None:
    """torch is right on this stage where W keeps the graph, and only there."""
    check = "split.retain_graph.tied-apart"
    text = script_of(Run(RunOptions.of("torch", checks=[check])), check)
    let_go = text.replace("options = {'retain_graph': True}", "options = {}")
    found = run_without_kit((text, ()), (let_go, ()), (text, ("right_split",)), folder=right_split)
    assert [code for code, _ in found] == [0, 1, 0]


@pytest.mark.parametrize("check", ["split.gradients.embedding", "property.split.11", "hooks.post_accumulate.mlp-split"])
def test_a_script_prints_expected_values_and_those_of_torch(
    check: str, right_split: Path, run_without_kit: RunWithoutKit
) -> None:
    text = script_of(Run(RunOptions.of("torch", profile="full", checks=[check])), check)
    (code, told), (of_right, _) = run_without_kit((text, ()), (text, ("right_split",)), folder=right_split)
    assert (code, "got " in told, "WRONG" in told, of_right) == (1, True, True, 0)
    assert max(map(len, told.splitlines())) < 200  # a few elements around the worst, no whole tensors
    assert text.startswith('"""')
    assert "import gradconform" not in text
    assert "from gradconform" not in text


def test_a_random_stage_is_written_as_a_module_that_computes_the_same() -> None:
    cases = {case for check in CHECKS.values() for trial in check.trials for case in trial.stages}
    random = [case for case in cases if isinstance(case.build(), RecipeModule)]
    operations = {line.operation for case in random for line in case.build()._recipe.lines}  # type: ignore[union-attr, operator] # a RecipeModule's
    assert len(operations) >= 20
    for case in random:
        source = Source()
        made = add_stage(source, case)
        names: dict[str, object] = {}
        exec("\n".join([*source.imports, "import torch", *source.definitions.values()]), names)  # noqa: S102 (as above)
        module = case.make(dtype=torch.float64, device=torch.device("cpu"), seed=0)
        written = eval(made, names)  # noqa: S307 (as above)
        written.double().load_state_dict(module.state_dict())
        args = _args(case)
        torch.manual_seed(0)
        expected = [leaf for _, leaf in leaves(module(*args(module)))]
        torch.manual_seed(0)
        got = [leaf for _, leaf in leaves(written(*args(written)))]
        assert [torch.equal(one, other) for one, other in zip(got, expected, strict=True)] == [True] * len(expected)


def _args(case):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 (a function of a module)
    from gradconform.fixtures.inputs import draw_arguments, place_arguments  # noqa: PLC0415 (used here alone)

    drawn = draw_arguments(case.inputs, seed=0, dtype=torch.float64)
    return lambda module: place_arguments(case.inputs, drawn, module, torch.device("cpu"))


@pytest.mark.parametrize(
    ("target", "check", "complaint"),
    [
        (
            "torch",
            "lifetime.outputs.mlp-full",
            "has no script, since a script cannot show when tensors are freed; omit",
        ),
        ("torch", "errors.next.raising-hook-full", "a script cannot show what is right after an exception; omit"),
        ("torch", "caller.buffer.full", "a script cannot show the caller's flat buffer of gradients; omit"),
    ],
)
def test_a_check_that_no_script_can_show_is_refused(target: str, check: str, complaint: str) -> None:
    known = check if check in CHECKS else next(one for one in CHECKS if one.startswith("lifetime."))
    replayed = Replayed(CHECKS[known], resolve(target), "float32", "cpu", 20)
    with pytest.raises(ScriptError, match=complaint):
        replayed.text()


@pytest.mark.parametrize("claims", [{}, {"grads_in_param_grad": False}, {"none_as_zeros": True}], ids=str)
def test_what_a_script_cannot_show_is_a_phrase_and_no_name_of_a_function(claims: dict[str, bool]) -> None:
    capabilities = Capabilities(**claims)
    missing = {text for check in CHECKS.values() for text in beyond(check, capabilities, "cpu")}
    assert "what is right after an exception" in missing
    assert [text for text in missing if " " not in text] == []


def test_a_target_that_ends_the_process_fails_in_the_script_as_well(
    tmp_path: Path, run_without_kit: RunWithoutKit
) -> None:
    (tmp_path / "ends.py").write_text("def stage_backward(*args):\n    raise SystemExit(0)\n", encoding="utf-8")
    run = Run(RunOptions(target=str(tmp_path / "ends.py"), checks="full.gradients.mlp", profile="full"))
    ((code, told),) = run_without_kit((script_of(run, "full.gradients.mlp"), ()), folder=tmp_path)
    assert code == 1, told
    assert "SystemExit: 0" in told
