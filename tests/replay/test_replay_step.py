"""``gradconform replay`` of training steps: one alone, or as a script for torchrun that shows what the check shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gradconform.cli import main, replay
from gradconform.devices.environment import environment
from gradconform.pipeline.training_step.composition import StepCase, step_cases
from gradconform.pipeline.training_step.oracle import Plain, run_plain
from gradconform.pipeline.training_step.runtimes import TORCH
from gradconform.replay.step_script import ReplayedStep, where_is
from gradconform.report.sentences import command_of_script
from gradconform.results import Report, Result
from gradconform.sources.pipeline import PipelineOptions

CASES = {case.id: case for case in step_cases("standard")}
#: Fewer of them, unlike each other.
SOME = [*CASES.values()][::14]
PAIRS = [name for name in CASES if ".pairs." in name]
#: The lightest of those whose layers lie over tensor ranks in one way.
SHARED = ["step.pairs.column-row-1", "step.pairs.sequence-1", "step.pairs.vocabulary-2"]
#: torch infers metadata by running a stage once more, and its BatchNorm counts that: up to 2.14.
COUNTS_INFERENCE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
FAULTS = "gradconform.reference.faults.training_step"


def script(case: StepCase, target: str = TORCH, *, runtime: bool = True) -> str:
    """Return the script of a training step on a target."""
    replayed = ReplayedStep(
        case=case, name=target, implementation=where_is(target, runtime=runtime), runtime=runtime,
        device="cpu", dtype="float32", seed=20,
    )  # fmt: skip
    return replayed.text("defect.py")


def run(text: str, folder: Path, **blocked: str) -> tuple[int, str]:
    """Run a script by torchrun with as many processes as it says; return the exit code and all that was printed."""
    (folder / "defect.py").write_text(text, encoding="utf-8")
    found = re.search(r"^ +(torchrun --nproc-per-node \d+ defect\.py)$", text, re.MULTILINE)
    assert found is not None
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *found[1].split()[1:]]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **blocked}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=variables)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def without_kit(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which an import of gradconform raises."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "gradconform.py").write_text("raise ImportError('a script needs torch alone')\n", encoding="utf-8")
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "code", "words"),
    [
        (
            "step.fsdp-evaluated",
            1,
            ["rank 1: the gradient of 1.head.weight, after act 2 (evaluate):", "rank 1:   got      None"],
        ),
        (
            "step.batch-norm",
            int(COUNTS_INFERENCE),
            [f"rank {rank}: buffer {rank}.block.norm.num_batches_tracked, after act 1" for rank in range(2)]
            if COUNTS_INFERENCE
            else [],
        ),
        ("step.ddp", 0, ["rank 0: right: all is as in one plain process", "rank 1: right: "]),
        # SequenceParallel trains a norm that is frozen.
        ("step.pairs.keyword-2", 1, ["rank 0: the gradient of 0.block.norm.weight, after act 1 (train):"]),
        # A gradient of it is as far from that in float64 as 50 times what others are told apart by.
        pytest.param("step.pairs.sequence-2", 0, ["rank 1: right: "], marks=pytest.mark.nightly),
        pytest.param("step.autocast", 0, ["rank 1: right: "], marks=pytest.mark.nightly),
        ("step.fsdp-mixed", 0, ["rank 1: right: "]),
        # Two replicas: the factor of a sum is their number.
        ("step.fsdp-accumulated", 0, ["rank 1: right: "]),
    ],
)
def test_a_torch_only_script_shows_the_failure_of_torchs_runtime(
    check: str, code: int, words: list[str], tmp_path: Path, without_kit: str
) -> None:
    text = script(CASES[check])
    found, told = run(text, tmp_path, PYTHONPATH=without_kit)
    assert (found, [word for word in words if word not in told]) == (code, []), told
    assert "gradconform" not in text.partition('\n"""\n')[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "fault", "wrong"),
    [
        ("step.ddp", "never_reduced", "the gradient of 0.block.up.weight, after act 1 (train):"),
        ("step.fsdp-mixed-auxiliary", "sums_left_rounded", "the gradient of 0.block.auxiliary.tally, after act 1"),
        ("step.pairs.sequence-1", "sequence_norm_not_reduced", "the gradient of 0.block.norm.bias, after act 1"),
        ("step.experts", "bias_by_own_tokens", "buffer 0.block.mixture.router.bias, after act 3 (update):"),
        ("step.used-on-one-replica", "averaged_over_users", "the gradient of 0.block.occasional.bias, after act 1"),
    ],
)
def test_a_script_of_a_wrong_runtime_fails_and_names_the_wrong_gradient(
    check: str, fault: str, wrong: str, tmp_path: Path
) -> None:
    code, told = run(script(CASES[check], f"{FAULTS}:{fault}"), tmp_path)
    assert code == 1
    assert f"rank 0: {wrong}" in told


@pytest.mark.slow
def test_each_script_has_no_undefined_name_and_no_unneeded_code() -> None:
    texts = [script(case, target) for case in SOME for target in (TORCH, "reference-runtime")]
    lines = [len(text.splitlines()) for text in texts]
    assert lines[0] <= 340
    assert max(lines) < 620
    texts.append(script(CASES["step.plain"], "reference-split", runtime=False))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F401,F811", "-"]
    done = subprocess.run(ruff, input="\n\n".join(map(_alone, texts)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:2000]


def _alone(text: str) -> str:
    """Return a script as a function, so that many of them stand in one file without a name in common."""
    body = text.replace("from __future__ import annotations\n", "")
    return "def _script():\n" + "\n".join(f"    {line}" if line else "" for line in body.splitlines())


def acts(case: StepCase, rank: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[Any, Any]]]:
    """Return what the plain process of a script shows behind each act, of the stages of a rank."""
    monkeypatch.setenv("RANK", str(rank))
    module: Any = ModuleType("script_of_a_step")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # its dataclasses look for it there
    exec(compile(script(case), "defect.py", "exec"), vars(module))  # noqa: S102 (the kit wrote it)
    module.of_peers = lambda mine: [mine]
    lower = {"autocast": "Autocast", "mixed": "Mixed"}
    plain = getattr(module, lower.get(case.composition.precision, "Plain"))()
    return iter(module.behind_each_act(plain, plain.modules))


def expected(plain: Plain, case: StepCase, rank: int) -> dict[str, dict[Any, Any]]:
    """Return what the oracle shows behind an act, as a script has it."""
    pipeline_rank, replica = divmod(rank // case.composition.tensor_ranks, case.composition.replicas)
    own = case.composition.placement[pipeline_rank]
    named: dict[str, Any] = {"the gradient of": plain.grads, "parameter": plain.params}
    if plain.act == "accumulate":
        del named["the gradient of"]  # it is not reduced yet
    if plain.buffers[replica]:
        named["buffer"] = plain.buffers[replica]
    seen: dict[str, dict[Any, Any]] = {
        what: {name: value for name, value in of.items() if int(name.partition(".")[0]) in own}
        for what, of in named.items()
    }
    if plain.act in {"train", "accumulate", "evaluate"}:
        last = case.composition.stages - 1 in own
        seen["the loss of micro-batch"] = dict(enumerate(plain.losses[replica])) if last else {}
    if plain.norm is not None:
        seen["the norm of all"] = {"gradients": plain.norm.item()}
    return seen


@pytest.mark.parametrize(
    "check",
    [
        "step.plain",
        "step.batch-norm",
        "step.tied-clipped",
        "step.ddp-tokens",
        "step.auxiliary",
        "step.low-rank-dropout",
        "step.fsdp-evaluated",
        "step.autocast",
        "step.fsdp-mixed",
        "step.fsdp-mixed-auxiliary",
        "step.ddp-auxiliary-tokens",
        "step.experts",
        "step.idle-experts",
        "step.dropped-tokens",
        "step.experts-over-tensor-ranks",
        "step.used-in-first-step",
        "step.context",
        "step.mean-of-halves",
        "step.two-predictions",
        "step.ddp-predictions",
        "step.mean-of-predictions",
        *SHARED,
        *(pytest.param(check, marks=pytest.mark.nightly) for check in PAIRS if check not in SHARED),
    ],
)
def test_the_plain_process_of_a_script_matches_the_oracle_bit_for_bit(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[check]
    oracle = run_plain(case.composition, dtype=torch.float32, seed=20).acts
    for rank in {0, case.composition.ranks - 1}:
        for plain, seen in zip(oracle, acts(case, rank, monkeypatch), strict=True):
            right = expected(plain, case, rank)
            assert {what: [*named] for what, named in seen.items()} == {
                what: sorted(named) for what, named in right.items()
            }
            wrong = [
                (what, name)
                for what, named in right.items()
                for name, value in named.items()
                if not _equal(seen[what][name], value)
            ]
            assert wrong == []


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize(
    ("target", "runtime", "where"),
    [
        ("torch", True, ""),
        ("reference-runtime", True, "gradconform.reference.runtime:PlainRuntime"),
        ("reference-split", False, "gradconform.reference.split"),
        ("mine.runtime:Runtime", True, "mine.runtime:Runtime"),
        ("in/a/folder/mine.py:Runtime", True, "mine:Runtime"),
        ("mine.py", False, "mine"),
    ],
)
def test_a_script_names_the_target_by_its_module(target: str, runtime: bool, where: str) -> None:  # noqa: FBT001 (a parameter)
    assert where_is(target, runtime=runtime) == where


@pytest.mark.slow
def test_a_training_step_is_replayed_by_its_id_and_from_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fault = f"{FAULTS}:only_last_microbatch"
    assert main(["pipeline", fault, "--checks", "step.plain", "--json", "report.json"]) != 0
    told = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert f"script: gradconform replay step.plain {fault} --script step.plain.py" in told
    assert main(["replay", "report.json#1"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "cpu float32, seed 20, training steps on 2 ranks" in told
    assert "same result as in the report, to the last digit" in told
    assert main(["replay", "report.json#step.plain", "--script", "defect.py"]) == 0
    assert "torchrun --nproc-per-node 2 defect.py" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "defect.py").read_text().startswith('"""A training step MUST give what one plain process gives.')


UNCLAIMED = CASES["step.tied-clipped"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("step.plain",), "a check id requires a TARGET"),
        (("step.plian", "torch"), "unknown training step 'step.plian'; nearest: step.plain"),
        (("step.plain", "autograd"), "'autograd' is an adapter; a pipeline requires"),
        (
            ("step.plain", "torch", "--flag", "tf32=on"),
            "takes only --device, --device-plugin, --dtype, --seed; omit --flag",
        ),
        (("step.plain", "torch", "--script", "no/folder/x.py"), "does not exist; create it first"),
        ((UNCLAIMED.id, "torch", "--script", "x.py"), f"{UNCLAIMED.id}: the runtime does not claim"),
    ],
)
def test_an_impossible_replay_is_refused(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *arguments]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_a_runtime_is_replayed_by_its_registered_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the pipeline's own search knows the names of runtimes."""
    replayed: list[str] = []
    monkeypatch.setattr(replay, "replay_pipeline", lambda given, *_: replayed.append(given.target) or 0)
    assert main(["replay", "step.plain", "reference-runtime"]) == 0
    assert replayed == ["reference-runtime"]


@pytest.mark.parametrize(
    ("check", "status", "command"),
    [
        ("step.ddp", "failed", "gradconform replay step.ddp torch --dtype bfloat16 --seed 3 --script step.ddp.py"),
        ("step.ddp", "passed", None),
        ("pipeline.1f1b.tied", "failed", None),
    ],
)
def test_a_failed_training_step_is_reported_with_its_script_command(
    check: str, status: Any, command: str | None
) -> None:
    options = PipelineOptions(profile="standard", dtype="bfloat16", seed=3, timeout=5).to_json()
    report = Report(
        profile="standard", target={"text": "torch", "name": "torch"}, environment={}, seed=3, manifest=1, planned=1,
        extra=("training steps on 2 ranks",), options=options,
    )  # fmt: skip
    result = Result(
        check=check, level="MUST", device="cpu", dtype="bfloat16", status=status, requirement="It MUST.", message="",
    )  # fmt: skip
    assert command_of_script(report, result) == command


def test_with_the_right_split_in_torch_no_script_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = {"text": "torch", "name": "torch with the right split", "version": None, "file": None, "sha256": None}
    result = Result(
        check="step.plain", level="MUST", device="cpu", dtype="float32", status="failed", requirement="It MUST.",
        message="", kind="mismatch",
    )  # fmt: skip
    report = Report(
        profile="quick", target=target, environment=environment(), seed=20, manifest=1,
        planned=1, extra=("training steps on 2 ranks",), options=PipelineOptions(fixed=True).to_json(),
        results=[result],
    )  # fmt: skip
    (tmp_path / "report.json").write_text(report.to_json())
    assert main(["replay", "report.json#step.plain", "--script", "x.py"]) == 2
    assert "--script runs torch as released, but step.plain ran with --fixed" in capsys.readouterr().err
    assert not (tmp_path / "x.py").exists()
