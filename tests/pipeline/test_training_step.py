"""Training steps: the space of what is composed, the plain process they are held against, and torch's own runtime."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradconform.cli import main
from gradconform.covering.rows import text
from gradconform.covering.space import Space, covered
from gradconform.fixtures.schedules.from_torch import of_torch
from gradconform.fixtures.schedules.schedule import of_rows
from gradconform.pipeline.exchange import Job
from gradconform.pipeline.training_step import model, on_rank
from gradconform.pipeline.training_step.attention import own_part
from gradconform.pipeline.training_step.bfloat16_stages import lowered, name_of
from gradconform.pipeline.training_step.composition import (
    ROWS,
    Composition,
    Routing,
    step_cases,
    unclaimed_values,
    with_what_is_new,
)
from gradconform.pipeline.training_step.dimensions import CONSTRAINTS, DIMENSIONS, EIGHT, QUICK, RARE
from gradconform.pipeline.training_step.experts import Mixture, Router, affinities
from gradconform.pipeline.training_step.model import (
    CALLS,
    SECOND_TARGET,
    TOKENS,
    VOCABULARY,
    WIDTH,
    counts,
    make_batch,
    make_stages,
    shared_layers,
    summed_loss,
    tied_names,
)
from gradconform.pipeline.training_step.on_rank import Place, lacking, spec_of
from gradconform.pipeline.training_step.oracle import PlainRun, run_plain
from gradconform.runtime import Batch, own_positions, scale_second, set_second_loss

#: torch infers metadata by running a stage once more, and its BatchNorm counts that: up to 2.14.
COUNTS_INFERENCE = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
CASES = {case.id: case for case in step_cases("standard")}
NOWHERE = Place(
    rank=0, device=torch.device("cpu"), dtype=torch.float32, seed=1, note=lambda _: None, within=nullcontext
)


def run(*arguments: str, folder: Path, columns: int = 100) -> tuple[str, dict[str, Any]]:
    """Run the command on training steps; return what it printed and its results by check."""
    command = [sys.executable, "-m", "gradconform", "pipeline", *arguments, "--json", "report.json"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": str(columns)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=variables)
    report = json.loads((folder / "report.json").read_text())
    return done.stdout, {result["check"]: result for result in report["results"]}


def test_rows_cover_every_possible_pair_also_without_rare_features() -> None:
    space = Space(DIMENSIONS, CONSTRAINTS)
    rows = [case.row for case in CASES.values() if space.fits(enumerate(case.row))]
    assert len(json.loads(ROWS.read_text(encoding="utf-8"))["pairs"]) < 240
    assert set(space.possible(2)) - covered(rows, 2) == set()
    for rare in (frozenset().union(*RARE[:count]) for count in range(1, len(RARE) + 1)):
        common = [row for row in rows if not space.claims_of(enumerate(row)) & rare]
        assert set(space.without(rare).possible(2)) - covered(common, 2) == set()


@pytest.mark.slow
def test_the_rows_of_the_file_are_complete_and_unchanged_by_new_dimensions() -> None:
    pytest.importorskip("allpairspy")
    frozen = json.loads(ROWS.read_text(encoding="utf-8"))["pairs"]
    assert text({"pairs": with_what_is_new(frozen)}) == ROWS.read_text(encoding="utf-8")
    # Of twelve dimensions the first ones were: those of precision and compiled stages came, then values.
    for count, dimensions in ((82, 12), (105, 14), (112, 14), (120, 14), (144, 14), (151, 14), (165, 14), (196, 18)):
        before = [row[:dimensions] for row in frozen[:count]]
        assert [list(row) for row in with_what_is_new(before)[:count]] == frozen[:count]


def test_the_twelve_most_common_steps_run_on_two_ranks_and_others_on_two_or_four() -> None:
    quick = step_cases("quick")
    assert (len(quick), {case.composition.ranks for case in quick}) == (12, {2})
    assert {case.composition.ranks for case in CASES.values()} == {2, 4}
    assert [case.id for case in quick] == [case.id for case in CASES.values() if case.id.removeprefix("step.") in QUICK]


def test_profile_full_adds_steps_on_eight_ranks_that_the_other_constraints_allow() -> None:
    added = [case for case in step_cases("full") if case.id not in CASES]
    assert [case.id.removeprefix("step.") for case in added] == list(EIGHT)
    assert {case.composition.ranks for case in added} == {8}
    words = [dict(zip([one.name for one in DIMENSIONS], case.row, strict=True)) for case in added]
    # Without more than four processes, layouts say whether there are tensor ranks; here all compositions have two.
    assert {one.because for one in CONSTRAINTS for row in words if one.forbids(row)} == {
        "more than four processes are seldom available",
        "experts are divided over tensor ranks only if there are several",
    }
    assert {case.composition.tensor_ranks for case in added} == {2}
    assert {"tensor", "replicas"} <= {case.composition.experts for case in added}


def test_torch_can_make_the_schedule_of_each_composition_in_its_size() -> None:
    for case in CASES.values():
        one = case.composition
        if one.schedule == "CSV":
            made = of_rows("csv", one.rows)
            assert (made.stages, made.microbatches) == (one.stages, one.microbatches), case.id
            continue
        made = of_torch(
            one.schedule, ranks=one.pipeline_ranks, stages_per_rank=one.per_rank, microbatches=one.microbatches
        )
        assert (made.stages, made.microbatches) == (one.stages, one.microbatches), case.id
        assert sorted(stage for stages in one.placement for stage in stages) == list(range(one.stages))


def test_tensor_ranks_are_adjacent_in_a_replica_and_shard_only_existing_layers() -> None:
    found = set()
    for case in CASES.values():
        if case.composition.tensor_ranks > 1:
            place = replace(NOWHERE, rank=case.composition.ranks - 2)
            spec = spec_of(case.composition, place)
            found.add((spec.pipeline_rank, spec.replica, spec.tensor_rank))
            stages = make_stages(case.composition, dtype=torch.float32, seed=1)
            named = {f"{index}.{name}" for index, stage in stages.items() for name, _ in stage.named_modules()}
            assert set(spec.shared) <= named, case.id
    assert found == {(0, 0, 0), (1, 0, 0), (0, 1, 0)}


def test_a_case_with_compiled_stages_may_take_four_times_as_long() -> None:
    cases = CASES["step.plain"], CASES["step.compiled"]
    job = Job(target="torch", cases=cases, device="cpu", dtype="float32", seed=1, timeout=60.0, runtime=True)
    assert [job.limit(case) for case in cases] == [60.0, 240.0]
    assert Job.from_json(job.to_json()) == job


def test_if_compilation_does_not_work_the_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not model.no_compiler("aot_eager")
    model.no_compiler.cache_clear()

    def refuse(*_: object) -> None:
        msg = "Dynamo is not supported\non this Python"
        raise RuntimeError(msg)

    monkeypatch.setattr(model, "compile_in_place", refuse)
    told = "torch.compile with inductor does not work here: Dynamo is not supported on this Python"
    assert model.no_compiler("inductor") == told
    model.no_compiler.cache_clear()


@pytest.mark.parametrize("check", ["step.autocast", "step.fsdp-mixed"])
def test_reduced_precision_stages_are_not_tried_on_parameters_other_than_float32(check: str) -> None:
    composition = CASES[check].composition
    assert not lacking(composition, torch.float32)
    assert lacking(composition, torch.bfloat16).endswith(" requires parameters in float32, got torch.bfloat16")


def test_mixed_precision_rounds_parameters_and_arguments_and_keeps_float32_gradients() -> None:
    one = CASES["step.fsdp-mixed"].composition
    stages = list(make_stages(one, dtype=torch.float32, seed=1).values())
    chunk = next(make_batch(one, 0, 0, dtype=torch.float32, seed=1).split())
    right = copy.deepcopy(stages[0]).to(torch.bfloat16)
    lower = lowered(stages[0])
    output = lower(chunk.x)
    assert torch.equal(output, right(chunk.x))
    output.sum().backward()
    right(chunk.x).sum().backward()
    grads = {name_of(name): parameter.grad for name, parameter in lower.named_parameters()}
    assert {name: grad is not None and grad.dtype for name, grad in grads.items()} == dict.fromkeys(
        dict(right.named_parameters()), torch.float32
    )
    for name, parameter in right.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(grads[name], parameter.grad.float())


def test_micro_batches_are_split_as_in_torch_and_the_ragged_one_is_last() -> None:
    case = next(case for case in CASES.values() if case.composition.ragged)
    batch = make_batch(case.composition, 0, 0, dtype=torch.float32, seed=1)
    rows = [len(chunk.x) for chunk in batch.split()]
    assert rows == [3] * (case.composition.microbatches - 1) + [2]
    assert torch.equal(torch.cat([chunk.target for chunk in batch.split()]), batch.target)


def test_sequences_have_the_length_of_their_micro_batch_and_padding_would_count() -> None:
    one = CASES["step.lengths"].composition
    batches = [make_batch(one, step, 0, dtype=torch.float32, seed=1) for step in (0, 2)]
    found = [[tuple(chunk.target.shape) for chunk in batch.split()] for batch in batches]
    assert found[0] == [(2, length) for length in (5, 3, 1, 5, 3, 1, 5, 3)]
    assert found[1] == [(2, length) for length in (1, 5, 3, 1, 5, 3, 1, 5)]
    for batch in batches:
        assert batch.tokens(counts) == sum(int(counts(chunk.target).sum()) for chunk in batch.split())
        assert batch.tokens(counts) < int(counts(batch.target).sum())
        assert batch.map(torch.clone).lengths == batch.lengths


def test_micro_batches_have_different_nonzero_token_counts() -> None:
    case = next(case for case in CASES.values() if case.composition.reduction == "tokens")
    batch = make_batch(case.composition, 0, 0, dtype=torch.float32, seed=20)
    found = [int(counts(chunk.target).sum()) for chunk in batch.split()]
    assert min(found) > 0
    assert len(set(found)) > 1


def test_a_mean_over_tokens_has_the_gradients_of_one_whole_batch_backward() -> None:
    one = CASES["step.ddp-tokens"].composition
    stages = make_stages(one, dtype=torch.float64, seed=3)
    batches = [make_batch(one, 0, replica, dtype=torch.float64, seed=3) for replica in range(2)]
    losses = []
    for batch in batches:
        value = batch.x
        for stage in stages.values():
            value = stage(value, **batch.kwargs)
        losses.append(summed_loss(value, batch.target))
    tokens = sum(int(counts(batch.target).sum()) for batch in batches)
    (sum(losses) / tokens).backward()  # type: ignore[union-attr] # a sum of tensors
    (plain,) = run_plain(one, dtype=torch.float64, seed=3).acts
    for index, stage in stages.items():
        for name, parameter in stage.named_parameters():
            torch.testing.assert_close(plain.grads[f"{index}.{name}"], parameter.grad, rtol=1e-12, atol=1e-14)


def test_micro_batch_contributions_add_up_to_the_gradients() -> None:
    for name in ("auxiliary", "tied", "tokens", "experts-over-replicas", "zigzag", "half-ignored", "two-predictions"):
        case = next(
            case
            for case in CASES.values()
            if name in case.row and case.composition.steps in {("train",), ("train", "train")}
        )
        run_of_all = run_plain(case.composition, dtype=torch.float32, seed=20, wide=True)
        act = run_of_all.acts[-1]
        tied = tied_names(case.composition)
        for parameter, grad in act.grads.items():
            parts = [
                weight * of[use]
                for share in run_of_all.shares.values()
                for weight, of in zip(act.weights, (share.loss, share.auxiliary, share.second), strict=True)
                for use in (tied if parameter in tied else (parameter,))
                if use in of
            ]
            assert (grad is None) == (not parts), (case.id, parameter)
            if grad is not None:
                torch.testing.assert_close(sum(parts), grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("routing", "found"),
    [("even", {5}), ("idle-rank", {0, 10}), ("idle-expert", {0}), ("uneven", set()), ("dropped", set())],
)
def test_experts_get_the_tokens_that_their_routing_says(routing: Routing, found: set[int]) -> None:
    for replica in range(2):
        drawn = affinities(routing, 2, TOKENS, replica, torch.Generator().manual_seed(3))
        chosen = drawn.flatten(0, 1).topk(2).indices
        counts = chosen.flatten().bincount(minlength=4).tolist()
        assert sum(counts) == 2 * 2 * TOKENS
        assert found <= set(counts)
        assert found or counts.index(max(counts)) == replica


def test_a_bias_changes_choices_without_a_tie() -> None:
    router = Router(WIDTH, summed=False)
    router.update_bias(torch.tensor([9, 1, 5, 5]))
    assert router.bias.tolist() == [-0.5, 0.5, 0.0, 0.0]
    sums = torch.arange(4) * 0.625 + torch.arange(-4, 5)[:, None] * 0.5
    assert len(sums.unique()) == sums.numel()
    assert torch.equal(sums.bfloat16().double(), sums.double())
    tokens, affinity = torch.randn(1, WIDTH), torch.tensor([[1.25, 0.625, 1.875, 0.0]])
    assert router(tokens, affinity)[2].sort().values.tolist() == [[1, 2]]
    assert router.counts.tolist() == [0, 1, 1, 0]


def test_dropped_tokens_are_the_last_of_an_expert() -> None:
    mixture = Mixture(WIDTH, summed=False, dropping=True)
    stand_in = torch.zeros(1, 5, 4)
    stand_in[..., :2] = 1.0
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 5, WIDTH)
    shared = mixture.shared(x)
    routed = (mixture(x, stand_in) - shared).abs().sum(-1)[0]
    assert (routed > 1e-4).tolist() == [True, True, True, False, False]


def test_positions_of_replicas_divide_a_sequence() -> None:
    assert [own_positions("halves", replica, 2, 8) for replica in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [own_positions("zigzag", replica, 2, 8) for replica in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert own_positions("whole", 1, 2, 8) == list(range(8))
    with pytest.raises(ValueError, match="expected a length that 4 divides, got 6"):
        own_positions("halves", 0, 2, 6)


@pytest.mark.parametrize(("check", "equal"), [("step.context", False), ("step.half-ignored", False)])
def test_shared_sequences_have_other_numbers_of_counted_tokens_on_each_replica(check: str, equal: bool) -> None:  # noqa: FBT001 (a parameter)
    one = CASES[check].composition
    batch = make_batch(one, 0, 0, dtype=torch.float32, seed=20)
    parts = [own_part(batch, one.context, replica, one.replicas) for replica in range(one.replicas)]
    assert sum(part.tokens(counts) for part in parts) == batch.tokens(counts)
    assert sum(part.positions() for part in parts) == batch.positions()
    assert (parts[0].tokens(counts) == parts[1].tokens(counts)) is equal
    assert (parts[1].tokens(counts) == 0) is (check == "step.half-ignored")


@pytest.mark.parametrize("check", ["step.two-predictions", "step.mean-of-predictions", "step.pairs.two-predictions-4"])
def test_a_second_loss_has_its_own_tokens_and_the_gradients_of_one_backward(check: str) -> None:
    one = replace(CASES[check].composition, steps=("train",), auxiliary=False, precision="unmixed")
    stages: list[Any] = list(make_stages(one, dtype=torch.float64, seed=3).values())
    head, second, embedding = stages[-1].head, stages[-1].second, stages[-1].second.embedding
    assert embedding.weight is stages[0].embedding.weight
    scale_second(stages, 0.0)  # this test adds the loss itself
    losses, tokens, microbatches = torch.zeros(2, dtype=torch.float64), [0, 0], 0
    for replica in range(one.replicas):
        for chunk in make_batch(one, 0, replica, dtype=torch.float64, seed=3).split():
            inner: list[torch.Tensor] = []
            handle = second.register_forward_pre_hook(lambda _, given, inner=inner: inner.append(given[0]))
            value = chunk.x
            for stage in stages:
                value = stage(value, **chunk.kwargs)
            handle.remove()
            joined = second.joined(torch.cat((inner[0], embedding(chunk.kwargs["following"])), -1))
            of_second = model.loss_of(one)(head(torch.tanh(joined)), chunk.kwargs[SECOND_TARGET])
            losses = losses + torch.stack([model.loss_of(one)(value, chunk.target), of_second])
            own = int(counts(chunk.target).sum()), chunk.second_tokens(counts, SECOND_TARGET)
            tokens = [sum(pair) for pair in zip(tokens, own, strict=True)]
            microbatches += 1
    assert tokens[0] != tokens[1]
    divisor = torch.tensor(tokens if one.reduction == "tokens" else [microbatches] * 2)
    (losses / divisor).sum().backward()
    (plain,) = run_plain(one, dtype=torch.float64, seed=3).acts
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            torch.testing.assert_close(plain.grads[f"{index}.{name}"], parameter.grad, rtol=1e-12, atol=1e-14)


def test_a_weight_that_a_stage_uses_twice_sums_its_gradients_of_a_micro_batch_in_bfloat16() -> None:
    one = Composition(precision="mixed", predicts_two=True, microbatches=1)
    (plain,) = run_plain(one, dtype=torch.float32, seed=20).acts
    grad = plain.grads["0.head.weight"]
    assert grad is not None
    assert torch.equal(grad, grad.bfloat16().float())


def test_a_divided_head_computes_the_second_loss_by_the_function_of_the_runtime() -> None:
    one = Composition(predicts_two=True, tensor_ranks=2, tensor_parallel="vocabulary", microbatches=1)
    (stage,) = make_stages(one, dtype=torch.float32, seed=20).values()
    assert list(shared_layers(one))[-2:] == ["0.embedding", "0.head"]
    assert "1.second.embedding" in shared_layers(replace(one, pipeline_ranks=2))
    seen = []

    def second_loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append((scores.shape, target))
        return scores.sum()

    set_second_loss([stage], second_loss)
    chunk = make_batch(one, 0, 0, dtype=torch.float32, seed=20)
    stage(chunk.x, **chunk.kwargs)
    ((shape, target),) = seen
    assert shape == (*chunk.x.shape, VOCABULARY)
    assert target is chunk.kwargs[SECOND_TARGET]


def test_data_decide_where_a_layer_is_used() -> None:
    found = {}
    for use in ("replica", "microbatch", "step", "never"):
        one = Composition(replicas=2, use=use, microbatches=2)
        found[use] = [
            [bool(chunk.kwargs["used"][0]) for chunk in make_batch(one, *at, dtype=torch.float32, seed=1).split()]
            for at in ((0, 0), (0, 1), (1, 0))
        ]
    assert found == {
        "replica": [[True, True], [False, False], [True, True]],
        "microbatch": [[True, False]] * 3,
        "step": [[True, True], [True, True], [False, False]],
        "never": [[False, False]] * 3,
    }


def test_an_unused_gradient_may_be_zeros_and_no_other() -> None:
    zeros, ones = torch.zeros(2), torch.ones(2)
    kept = {"0.unused": zeros, "0.wrong": ones, "0.used": zeros}
    replicas = SimpleNamespace(whole=dict)
    found = on_rank._grads("train", replicas, kept, {"0.unused", "0.wrong"})  # type: ignore[arg-type] # what it calls
    assert (found["0.unused"], found["0.wrong"] is ones, found["0.used"] is zeros) == (None, True, True)


def test_buffers_are_equal_with_and_without_recording() -> None:
    case = next(case for case in CASES.values() if case.composition.layers == "batch-norm")
    wide, plain = (run_plain(case.composition, dtype=torch.float64, seed=2, wide=wide) for wide in (True, False))
    assert wide.acts[-1].buffers[0]
    for name, value in plain.acts[-1].buffers[0].items():
        assert torch.equal(value, wide.acts[-1].buffers[0][name])


def test_plain_autograd_calls_a_receive_hook_once_per_micro_batch() -> None:
    one = CASES["step.hooked"].composition
    for wide in (True, False):
        acts = run_plain(one, dtype=torch.float32, seed=20, wide=wide).acts
        assert [{name: int(calls) for name, calls in act.buffers[0].items()} for act in acts] == [
            {f"1.{CALLS}": count * one.microbatches} for count in (1, 1, 2)
        ]


def test_plain_runs_of_a_composition_are_made_once_for_the_targets_that_follow_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def counted(composition: Composition, **options: Any) -> PlainRun:
        made.append("wide" if options.get("wide") else "plain")
        return run_plain(composition, **options)

    monkeypatch.setattr(on_rank, "run_plain", counted)
    on_rank._plain_runs.cache_clear()
    place = torch.float32, 20, torch.device("cpu")
    first = on_rank._plain_runs(CASES["step.plain"].composition, *place)
    assert on_rank._plain_runs(CASES["step.plain"].composition, *place) is first
    assert made == ["wide", "plain"]  # no norm is clipped, so none is nudged
    on_rank._plain_runs(CASES["step.zero-bubble-clipped"].composition, *place)
    assert made[2:] == ["wide", "plain", "plain"]
    on_rank._plain_runs.cache_clear()


def test_a_claim_withholds_the_rows_with_other_values() -> None:
    case = next(case for case in CASES.values() if "ragged" in case.row)
    assert unclaimed_values(case, {"rows": "even"}) == "rows=ragged"
    assert unclaimed_values(case, {"rows": ["even", "ragged"], "schedule": case.row[1]}) == ""


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"layouts": "two-stages"}, "claims the unknown dimension 'layouts'; nearest: layout"),
        ({"rows": "even raged"}, "claim rows: expected some of even, ragged, lengths, got 'raged'"),
    ],
)
def test_a_claim_of_an_unknown_dimension_or_value_is_refused(
    claims: dict[str, str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "from gradconform.reference.runtime import PlainRuntime",
        "class Runtime(PlainRuntime):",
        f"    claims = {claims}",
    ]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    assert main(["pipeline", f"{tmp_path / 'mine.py'}:Runtime"]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_splitting_a_batch_also_splits_its_keyword_arguments() -> None:
    batch = Batch(x=torch.arange(5), target=torch.arange(5), kwargs={"scale": torch.ones(5)}, microbatches=2)
    first, second = batch.split()
    assert (first.x.tolist(), second.kwargs["scale"].tolist()) == ([0, 1, 2], [1.0, 1.0])


@pytest.mark.nightly
def test_the_plain_runtime_passes_every_step_on_eight_ranks(tmp_path: Path) -> None:
    told, found = run("reference-runtime", "--profile", "full", "--checks", "step.eight-*", folder=tmp_path)
    assert {check: result["status"] for check, result in found.items()} == {f"step.{name}": "passed" for name in EIGHT}
    assert "training steps on 8 ranks" in told
    assert "unclaimed capabilities are tried" not in told


#: A runtime whose sessions refuse each step, and of which a process may have one at a time.
REFUSING = """
from gradconform.adapter import UnsupportedError
from gradconform.reference.runtime import PlainRuntime, PlainSession


class Session(PlainSession):
    def step(self, batch):
        raise UnsupportedError("it trains nothing")

    def close(self):
        Runtime.opened = False


class Runtime(PlainRuntime):
    opened = False

    def open(self, stages, spec):
        assert not Runtime.opened, "a session is still open"
        Runtime.opened = True
        return Session(stages, spec)
"""


@pytest.mark.slow
def test_a_session_that_refuses_a_step_is_closed_before_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING, encoding="utf-8")
    told, found = run("refusing.py:Runtime", "--checks", "step.plain,step.batch-norm", folder=tmp_path)
    assert {result["message"] for result in found.values()} == {"the runtime refuses it: it trains nothing"}, told


@pytest.mark.slow
def test_torch_loses_gradients_in_an_evaluation_and_counts_an_extra_batch(tmp_path: Path) -> None:
    told, found = run("torch", "--checks", "step.fsdp-evaluated,step.batch-norm,step.plain", folder=tmp_path)
    assert {check: result["status"] for check, result in found.items()} == {
        "step.fsdp-evaluated": "failed",
        "step.batch-norm": "failed" if COUNTS_INFERENCE else "passed",
        "step.plain": "passed",
    }, told
    lost = {(one["kind"], one["sort"], one["action"]) for one in found["step.fsdp-evaluated"]["findings"]}
    assert lost == {("missing", "parameter gradient", "act 2 (evaluate)")}
    counted = [one["where"] for one in found["step.batch-norm"]["findings"] if one["sort"] == "buffer"]
    batches = {"rank 0, stage 0 block.norm.num_batches_tracked", "rank 1, stage 1 block.norm.num_batches_tracked"}
    assert batches & set(counted) == (batches if COUNTS_INFERENCE else set())


@pytest.mark.slow
def test_failures_of_torchs_runtime_are_not_charged_to_functions_in_it(tmp_path: Path) -> None:
    told, found = run("reference-split", "--checks", "step.fsdp-evaluated,step.plain", folder=tmp_path)
    assert {check: result["status"] for check, result in found.items()} == {
        "step.fsdp-evaluated": "unsupported",
        "step.plain": "passed",
    }, told
    assert "torch's runtime is also wrong here with a correct split backward" in found["step.fsdp-evaluated"]["message"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("torch", "--profile", "quick", "--schedule", "1F1B"), "--profile selects training steps"),
        (("torch", "--ranks", "4"), "--ranks requires --schedule; training steps have fixed sizes"),
        (("torch", "--checks", "step.fsdp-evaluate"), "nearest: step.fsdp-evaluated"),
        (("torch", "--checks", "step.autocast"), "add --profile standard"),
        (("torch", "--checks", "step.eight-experts"), "add --profile full"),
        (("autograd",), "'autograd' is an adapter; a pipeline requires a runtime"),
        (("no.such.module",), "no.such.module"),
    ],
)
def test_an_invalid_pipeline_is_refused_before_any_process_starts(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["pipeline", *arguments])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert complaint in " ".join(told.err.split())
