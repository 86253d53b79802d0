"""Stage objects: torch's, and wrong ones that each check must find."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.cli import main
from gradconform.pipeline.extra_checks import run_extra
from gradconform.pipeline.stage_objects import DwBuilder, StageObject
from gradconform.pipeline.stage_objects.chain import Subject
from gradconform.pipeline.stage_objects.checks import CHECKS
from gradconform.plugins.adapters.torch_runtime import TorchStageObject, TorchStageObjects
from gradconform.results import Result


class Wrong(TorchStageObjects):
    """torch's stages, each wrapped in something wrong."""

    def __init__(self, wrap: Callable[[TorchStageObject], Any]) -> None:
        self._wrap = wrap

    def manual(self, *args: Any, **options: Any) -> Any:
        return [self._wrap(stage) for stage in super().manual(*args, **options)]

    def traced(self, *args: Any, **options: Any) -> Any:
        return [self._wrap(stage) for stage in super().traced(*args, **options)]


class Stage(TorchStageObject):
    """A stage that does as torch's does; what is wrong is overridden."""

    def __init__(self, stage: TorchStageObject) -> None:
        super().__init__(stage._stage)


class DropsAWeight(Stage):
    def weight(self, mb: int) -> None:
        if mb != 1:
            super().weight(mb)


class ForgetsTheKeyword(Stage):
    def forward(self, mb: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return super().forward(mb, args, {name: value * 0 + 1 for name, value in kwargs.items()})


class DoublesWhatItHandsBack(Stage):
    def backward(self, mb: int, loss: Tensor | None, *, full: bool) -> None:
        super().backward(mb, None if loss is None else 2 * loss, full=full)


class RefusesNothing(Stage):
    def __init__(self, stage: TorchStageObject) -> None:
        super().__init__(stage)
        self._stage._runtime_validate = False

    def weight(self, mb: int) -> None:
        if mb in self._stage.dw_runner:
            super().weight(mb)


class RefusesWithoutAWord(Stage):
    def weight(self, mb: int) -> None:
        try:
            super().weight(mb)
        except AssertionError:
            message = "no"
            raise RuntimeError(message) from None


class KeepsActivations(Stage):
    def __init__(self, stage: TorchStageObject) -> None:
        super().__init__(stage)
        self._kept: list[Any] = []
        linear = getattr(self.module, "linear", None)  # a traced stage has none, and no check of what it releases
        if linear is not None:
            linear.register_forward_hook(lambda _module, _args, output: self._kept.append(output))


class KeepsItsCaches(Stage):
    def kept(self) -> Mapping[str, int]:
        return {**super().kept(), "forward cache": 1}


class BuildsTwice(TorchStageObjects):
    def manual(
        self, modules: Sequence[nn.Module], *args: Any, dw_builders: Sequence[DwBuilder] | None = None, **options: Any
    ) -> Any:
        if dw_builders is not None:
            builders = dw_builders
            dw_builders = [lambda b=builder: (b(), b())[1] for builder in builders]  # type: ignore[misc] # b is its own
        return super().manual(modules, *args, dw_builders=dw_builders, **options)


class LosesWhatIsCompiled(TorchStageObjects):
    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        stages[-1].weight = lambda _mb: None  # type: ignore[method-assign] # a W of nothing
        return microbatches


class SplitsWhatIsCompiled(TorchStageObjects):
    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        return len(stages), microbatches


class RefusesCompiledWithoutAWord(TorchStageObjects):
    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        message = f"no, not {len(stages)} stages and {microbatches} micro-batches"
        raise RuntimeError(message)


class AcceptsWhatIsCompiled(TorchStageObjects):
    """As torch 2.6: the schedule refuses nothing and, without a loss, takes their backward from the stages."""

    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        for stage in stages:
            stage._stage.submod = nn.Identity()  # type: ignore[attr-defined] # nothing that torch.compile made
            stage._stage.has_backward = False  # type: ignore[attr-defined] # as 2.6's schedule does
        return super().split_schedule(stages, microbatches)


def failed(subject: TorchStageObjects) -> set[str]:
    return {
        result.check for result in run_extra(Subject(subject), CHECKS, dtype="float32") if result.status == "failed"
    }


SPLIT = {f"stage.{kind}.{word}split" for kind in ("manual", "traced") for word in ("", "keyword-arguments-")}
FULL = {check.replace("split", "full") for check in SPLIT}
RELEASES = {f"stage.releases.{place}" for place in ("first", "middle", "last")}
BUILDER = {"stage.dw_builder.full", "stage.dw_builder.split"}
WEIGHT = {"stage.refuses.w-without-b", "stage.refuses.w-without-b-dw-builder"}
CHECKED = {f"stage.refuses.{what}" for what in ("shape", "dtype", "hook-dtype", "hook-shape")}

WRONG: list[tuple[TorchStageObjects, set[str]]] = [
    (Wrong(DropsAWeight), SPLIT | {"stage.dw_builder.split", "stage.refuses.w-without-b"}),
    (Wrong(ForgetsTheKeyword), {check for check in SPLIT | FULL if "keyword" in check}),
    (Wrong(DoublesWhatItHandsBack), SPLIT | FULL | BUILDER),
    (Wrong(RefusesNothing), WEIGHT | CHECKED),
    (Wrong(RefusesWithoutAWord), WEIGHT),
    (Wrong(KeepsActivations), RELEASES),
    (Wrong(KeepsItsCaches), RELEASES),
    (BuildsTwice(), BUILDER),
    (LosesWhatIsCompiled(), {"stage.refuses.compiled-split"}),
    (RefusesCompiledWithoutAWord(), {"stage.refuses.compiled-split"}),
]


def test_torch_passes_every_check() -> None:
    assert failed(TorchStageObjects()) == set()


def test_a_right_split_of_a_compiled_stage_passes_like_a_refusal() -> None:
    assert failed(SplitsWhatIsCompiled()) == set()


def of_compiled_split(subject: TorchStageObjects) -> Result:
    (checks,) = [{clause: judge} for clause, judge in CHECKS.items() if clause.id == "stage.refuses.compiled-split"]
    (result,) = run_extra(Subject(subject), checks, dtype="float32")
    return result


def test_an_accepted_split_that_cannot_run_is_unsupported() -> None:
    result = of_compiled_split(AcceptsWhatIsCompiled())
    assert result.status == "unsupported"
    assert "accepts these stages in ScheduleInterleavedZeroBubble, which runs on a loss alone" in result.message


def test_if_torch_compile_does_not_work_the_check_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(*_: object, **__: object) -> None:
        message = "torch.compile is not supported on this Python"
        raise RuntimeError(message)

    monkeypatch.setattr(torch, "compile", compile_nothing)
    result = of_compiled_split(TorchStageObjects())
    expected = "torch.compile does not work here: torch.compile is not supported on this Python"
    assert (result.status, result.message) == ("unsupported", expected)


@pytest.mark.parametrize(
    ("subject", "expected"), WRONG, ids=[getattr(one, "_wrap", type(one)).__name__ for one, _ in WRONG]
)
def test_a_wrong_stage_object_fails_exactly_the_expected_checks(subject: TorchStageObjects, expected: set[str]) -> None:
    assert failed(subject) == expected


def test_every_check_is_failed_by_a_wrong_implementation() -> None:
    assert {check.id for check in CHECKS} == set().union(*(expected for _, expected in WRONG))


def test_the_command_gives_a_verdict_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert main(["stage-objects", "torch", "--json", str(path)]) == 0
    assert f"torch: {len(CHECKS)} of {len(CHECKS)} checks passed" in capsys.readouterr().out
    assert {result["status"] for result in json.loads(path.read_text())["results"]} == {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize(("device", "unsupported"), [("simx", 0), ("pebble", 4)])
def test_stage_objects_are_judged_on_a_device(device: str, unsupported: int, tmp_path: Path) -> None:
    words = ["gradconform", "stage-objects", "torch", "--device", device, "--json", "report.json"]
    if device == "pebble":
        pytest.importorskip("torch._C._acc", reason="a device in Python alone needs a newer torch")
        shutil.copy(Path(__file__).parents[1] / "devices/pebble.py", tmp_path)
        words += ["--device-plugin", "pebble"]
    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    results = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["results"]
    counts = Counter(result["status"] for result in results)
    assert counts == {"passed": len(CHECKS) - unsupported, **({"unsupported": unsupported} if unsupported else {})}
    assert {result["device"] for result in results} == {device}
    assert all("torch cannot trace a model on pebble" in one["message"] for one in results if one["message"])
    assert done.returncode == 0


def test_a_target_that_makes_no_stages_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage-objects", "gradconform.reference.split"]) == 2
    assert "has no name; expected a name, manual and traced" in " ".join(capsys.readouterr().err.split())


def test_torchs_stage_has_the_required_methods() -> None:
    methods = {name for name in vars(StageObject) if not name.startswith("_")}
    assert methods <= set(vars(TorchStageObject))
