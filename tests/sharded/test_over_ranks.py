"""Each cause between ranks is named for the mistake that it describes, and for no other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gradconform.diagnosis.norm_over_ranks import NormPart, of_norm
from gradconform.diagnosis.over_ranks import OverRanks, of_copies, of_tensor
from gradconform.trial.mesh import Mesh

EPS = torch.finfo(torch.float32).eps


def drawn(*seeds: int) -> list[Tensor]:
    return [torch.randn(6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]


def cause(mesh: Mesh, got: list[Tensor | None], right: list[Tensor], before: list[Tensor] | None = None) -> str:
    """Return the kind of the cause; empty if none is named."""
    shown: Mapping[int, Tensor | None] = {rank: None if one is None else one.float() for rank, one in enumerate(got)}
    over = OverRanks(mesh=mesh, got=shown, right=dict(enumerate(right)), eps=EPS, before=dict(enumerate(before or [])))
    found = of_tensor(over)
    return "" if found is None else found.kind.name.lower()


A, B, C, D = drawn(0, 1, 2, 3)
TP, GRID = Mesh({"tp": 2}), Mesh({"dp": 2, "tp": 2})
WHOLE = A + B

CASES: dict[str, tuple[str, Mesh, list[Tensor | None], list[Tensor], list[Tensor] | None]] = {
    "own contribution": ("not_summed_over", TP, [A, B], [WHOLE, WHOLE], None),
    "own contribution, doubled": ("not_summed_over", TP, [2 * A, 2 * B], [WHOLE, WHOLE], None),
    "twice": ("times_size_of", TP, [2 * WHOLE] * 2, [WHOLE] * 2, None),
    "half": ("divided_by_size_of", TP, [WHOLE / 2] * 2, [WHOLE] * 2, None),
    "three times": ("scaled", TP, [3 * WHOLE] * 2, [WHOLE] * 2, None),
    "negative": ("sign_reversed", TP, [-WHOLE] * 2, [WHOLE] * 2, None),
    "one rank, others None": ("one_rank_has_it", TP, [WHOLE, None], [WHOLE] * 2, None),
    "one rank, others zero": ("one_rank_has_it", TP, [WHOLE, 0 * A], [WHOLE] * 2, None),
    "one rank, others their own": ("one_rank_has_it", TP, [WHOLE, B], [WHOLE] * 2, [A, B]),
    "none": ("never_accumulated", TP, [None, None], [WHOLE] * 2, None),
    "another part": ("part_of_other_rank", TP, [B, A], [A, B], None),
    "parts summed": ("parts_summed", TP, [WHOLE] * 2, [A, B], None),
    "one rank missing": ("rank_missing", TP, [A, A], [WHOLE] * 2, [A, B]),
    "another group": ("summed_over_other", GRID, [2 * A, 2 * A, 2 * B, 2 * B], [WHOLE] * 4, None),
    "divided ones over another group": (
        "summed_over_other",
        GRID,
        [A + C, A + C, B + D, B + D],
        [A + B, C + D] * 2,
        None,
    ),
    "mean of means": ("mean_of_ranks", TP, [A + B] * 2, [0.5 * A + 1.5 * B] * 2, [A, B]),
    "mean of means, per rank": ("mean_of_ranks", TP, [2 * A, B / 1.5], [A, B], None),
    "another factor each": ("ranks_scaled", TP, [3 * A, 5 * B], [A, B], None),
    "a logarithm of copies": ("logarithm_counts", TP, [WHOLE + math.log(2)] * 2, [WHOLE] * 2, None),
    "unrelated": ("", TP, [C, D], [WHOLE] * 2, None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_gets_its_cause(name: str) -> None:
    expected, mesh, got, right, before = CASES[name]
    assert cause(mesh, got, right, before) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_that_a_narrower_dtype_holds_are_rounded_to_it(dtype: torch.dtype) -> None:
    over = OverRanks(mesh=TP, got=dict.fromkeys((0, 1), WHOLE.to(dtype).float()), right={0: WHOLE, 1: WHOLE}, eps=EPS)
    found = of_tensor(over)
    assert found is not None
    assert str(found) == f"rounded to {str(dtype).removeprefix('torch.')}"
    assert of_tensor(replace(over, right={0: C, 1: C})) is None  # other values, which are as narrow
    assert of_tensor(replace(over, eps=torch.finfo(dtype).eps, right={0: C, 1: C})) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_contributions_rounded_before_they_are_summed_are_named(dtype: torch.dtype) -> None:
    own = {0: {0: A, 1: A}, 1: {0: B, 1: B}}
    got = A.to(dtype).float() + B.to(dtype).float()
    over = OverRanks(mesh=TP, got={0: got, 1: got}, right={0: WHOLE, 1: WHOLE}, eps=EPS, contributions=own, along="tp")
    found = of_tensor(over)
    assert found is not None
    name = str(dtype).removeprefix("torch.")
    assert str(found) == f"its contributions are rounded to {name} before they are summed over tp"
    assert of_tensor(replace(over, got={0: got * 1.01, 1: got * 1.01})) != found


def test_the_value_of_another_microbatch_is_named() -> None:
    others = {1: {0: C, 1: D}, 2: {0: B, 1: A}}
    over = OverRanks(mesh=TP, got={0: B.float(), 1: A.float()}, right={0: C + D, 1: A + D}, eps=EPS, of_others=others)
    found = of_tensor(over)
    assert found is not None
    assert str(found).startswith("micro-batch 2 in place of micro-batch 0: ")
    assert of_tensor(replace(over, got={0: B.float(), 1: D.float()})) is None


def test_one_element_shows_no_factor() -> None:
    one = torch.tensor([2.0], dtype=torch.float64)
    assert cause(TP, [one * 1.3] * 2, [one] * 2) == ""


def test_a_contribution_of_the_whole_stage_explains_a_missing_sum() -> None:
    own = {0: {0: A, 1: A + 1}, 1: {0: B, 1: B + 2}}
    right = {0: A + B, 1: A + B + 3}
    over = OverRanks(
        mesh=TP, got={0: A.float(), 1: (B + 2).float()}, right=right, eps=EPS, contributions=own, along="tp",
    )  # fmt: skip
    found = of_tensor(over)
    assert found is not None
    assert str(found) == "never summed over tp: each rank has only its own contribution"


def test_contributions_along_one_of_two_dimensions_explain_a_missing_sum_over_it() -> None:
    own = {0: dict(enumerate([A, B, C, D])), 1: dict(enumerate([A + 1, B + 2, C + 3, D + 4]))}
    right = {rank: own[0][rank] + own[1][rank] for rank in range(4)}
    got = {rank: own[rank % 2][rank].float() for rank in range(4)}
    over = OverRanks(mesh=GRID, got=got, right=right, eps=EPS, contributions=own, along="tp")
    assert str(of_tensor(over)) == "never summed over tp: each rank has only its own contribution"
    assert of_tensor(replace(over, contributions={})) is None


def test_a_mean_of_what_ranks_have_alone_is_named_where_one_has_no_mean() -> None:
    mesh = Mesh({"cp": 4})
    own = {0: A, 1: B, 2: C, 3: D * float("nan")}
    got = dict.fromkeys(range(4), ((A + B + C) / 4).float())
    right = dict.fromkeys(range(4), 0.2 * A + 0.5 * B + 0.3 * C)
    over = OverRanks(mesh=mesh, got=got, right=right, eps=EPS)
    assert of_tensor(over) is None
    found = of_tensor(replace(over, alone={rank: dict.fromkeys(range(4), one) for rank, one in own.items()}))
    assert str(found) == "the mean of the ranks' means instead of the mean over all tokens"


PARTS = (
    NormPart("norm.weight", 4.0, {0: 4.0, 1: 4.0}, 2),
    NormPart("up.weight", 9.0, {0: 7.0, 1: 2.0}, 1),
    NormPart("down.bias", 3.0, {0: 3.0, 1: 3.0}, 2),
)


@pytest.mark.parametrize(
    ("squares", "said"),
    [
        ((23.0, 23.0), "the norm counts parameters that several ranks have 2 times"),
        ((14.0, 9.0), "the norm includes only the parts of its own rank"),
        ((11.3624861,) * 2, "the norm is the mean of the norms that each rank has for its own parts"),
        ((9.0, 9.0), "the norm leaves out the parameters that several ranks have"),
        ((12.0, 12.0), "the norm leaves out norm.weight"),
        ((19.0, 19.0), "the norm counts down.bias 2 times"),
        ((32.0, 32.0), "the norm is the square root of 2, the size of tp, times too large"),
    ],
)
def test_a_wrong_norm_gets_its_cause(squares: tuple[float, float], said: str) -> None:
    assert str(of_norm({rank: square**0.5 for rank, square in enumerate(squares)}, PARTS, TP, EPS)) == said


def test_a_norm_of_one_parameter_names_the_rank_whose_part_it_has() -> None:
    found = of_norm({0: 2.0**0.5, 1: 2.0**0.5}, PARTS[1:2], TP, EPS)
    assert str(found) == "the norm includes only rank 1's part of up.weight"
    assert str(of_norm({0: 0.0, 1: 0.0}, PARTS[1:2], TP, EPS)) == "the norm leaves out up.weight"


def test_unequal_copies_are_named_only_where_there_are_copies() -> None:
    said = "its copies have different values along tp: each rank computes it from its own part"
    copies = OverRanks(mesh=TP, got={0: C.float(), 1: D.float()}, right={0: WHOLE, 1: WHOLE}, eps=EPS)
    parts = OverRanks(mesh=TP, got={0: C.float(), 1: D.float()}, right={0: A, 1: B}, eps=EPS)
    assert str(of_copies(copies)) == said
    assert of_copies(parts) is None


def test_an_unrelated_norm_has_no_cause() -> None:
    assert of_norm({0: 100.0, 1: 100.0}, PARTS, TP, EPS) is None
