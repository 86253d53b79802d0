"""Materials: one draw, fresh copies, the same in every process, rounded before it is widened."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.drive.oracle import replaced
from gradconform.fixtures.inputs import Integers, Normal, ParameterNamed, SameAs
from gradconform.fixtures.stages.case import StageCase
from gradconform.trees import leaves, tensors
from gradconform.trial.materials import Materials, mean_squares, stable_seed
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
LINEAR = StageCase("linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))

DIGEST = """
import hashlib, torch
from gradconform.fixtures.stages import ZOO
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial
from gradconform.trees import tensors
trial = Trial(stages=(ZOO["embedding"], ZOO["two-outputs"]), program="F0 1F0 1B0 B0", prior_grads=True)
materials = Materials(trial, dtype=torch.float32, device=torch.device("cpu"), seed=20)
found = []
for lane in (1, 0):
    stage = materials.stage(lane)
    found += [p.data for p in stage.parameters()] + [p.grad for p in stage.parameters()]
    found += tensors(materials.args(lane, 1, stage)) + tensors(materials.output_grads(lane, 1))
    found += tensors(materials.target(lane, 1)) + [torch.tensor(materials.rng_seed(1))]
text = b"".join(bytes(t.detach().contiguous().view(-1).view(torch.uint8).tolist()) for t in found)
"""


class _Pair(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 3)

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # noqa: A002 (torch's name)
        """Return two outputs."""
        out = super().forward(input)
        return out, out * 2


def of(dtype: torch.dtype = torch.float32, seed: int = 20, **options: Any) -> Materials:
    options = {"stages": (LINEAR,), "program": "F0 B0", **options}
    return Materials(Trial(**options), dtype=dtype, device=CPU, seed=seed)


def parts() -> dict[str, Callable[[Materials], list[Tensor]]]:
    return {
        "parameters": lambda m: list(m.stage(0).parameters()),
        "prior": lambda m: m.prior(0),
        "prior of one": lambda m: [m.prior_of(0, 1)],
        "prior grads": lambda m: [p.grad for p in m.stage(0).parameters() if p.grad is not None],
        "args": lambda m: tensors(m.args(0, 1, m.stage(0))),
        "output_grads": lambda m: tensors(m.output_grads(0, 1)),
        "target": lambda m: tensors(m.target(0, 1)),
        "example_outputs": lambda m: tensors(m.example_outputs(0)),
    }


@pytest.mark.parametrize("part", parts())
def test_changes_to_one_copy_do_not_affect_the_next_copy(part: str) -> None:
    materials, take = of(prior_grads=True), parts()[part]
    expected = [tensor.detach().clone() for tensor in take(materials)]
    assert expected
    for tensor in take(materials):
        tensor.detach().fill_(7.0)
        if tensor.is_leaf:
            tensor.requires_grad_(not tensor.requires_grad)
    again = take(materials)
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    assert [t.requires_grad for t in again] == [t.requires_grad for t in take(of(prior_grads=True))]


@pytest.mark.parametrize("part", parts())
def test_a_part_does_not_depend_on_earlier_draws(part: str) -> None:
    alone, after = of(prior_grads=True), of(prior_grads=True)
    for take in parts().values():
        take(after)
    torch.rand(3)  # the global generator is not what anything is drawn from
    pairs = zip(parts()[part](alone), parts()[part](after), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_prior_gradients_of_single_parameters_use_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    materials = of(prior_grads=True)
    wanted = materials.prior(0)
    monkeypatch.delattr(type(LINEAR), "make")
    assert [materials.prior_of(0, position).tolist() for position in range(len(wanted))] == [w.tolist() for w in wanted]


def test_draws_are_equal_in_another_process() -> None:
    here: dict[str, Any] = {}
    exec(DIGEST, here)  # noqa: S102 (the very text that the other process runs)
    script = f"{DIGEST}\nprint(hashlib.sha256(text).hexdigest())"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == hashlib.sha256(here["text"]).hexdigest()


def test_seeds_of_parts_are_stable_and_distinct() -> None:
    assert stable_seed(20, "linear", "args", 0) == 3240834369
    assert len({stable_seed(20, "linear", part, mb) for part in ("args", "grads") for mb in range(50)}) == 100


@pytest.mark.parametrize("part", ["args", "output_grads", "target"])
def test_another_seed_or_micro_batch_draws_other_values(part: str) -> None:
    takes: dict[str, Callable[[Materials, int], list[Tensor]]] = {
        "args": lambda m, mb: tensors(m.args(0, mb, m.stage(0))),
        "output_grads": lambda m, mb: tensors(m.output_grads(0, mb)),
        "target": lambda m, mb: tensors(m.target(0, mb)),
    }
    take = takes[part]
    drawn = [take(of(seed=seed), mb)[0] for seed, mb in ((20, 0), (20, 1), (21, 0))]
    assert not any(torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_the_loss_target_differs_from_every_output_gradient() -> None:
    materials = of()
    grads = [tensors(materials.output_grads(0, mb))[0] for mb in range(3)]
    assert not any(torch.equal(tensors(materials.target(0, 0))[0], grad) for grad in grads)


def test_with_same_args_every_micro_batch_draws_the_same_arguments() -> None:
    materials = of(same_args=True)
    stage = materials.stage(0)
    (first,), (second,) = materials.args(0, 0, stage), materials.args(0, 4, stage)
    assert torch.equal(first, second)
    assert first is not second


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_everything_is_the_float64_draw_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    narrow, wide = of(dtype), of(torch.float64)
    for take in (parts()["parameters"], parts()["args"], parts()["output_grads"], parts()["target"]):
        for one, other in zip(take(narrow), take(wide), strict=True):
            assert one.dtype == dtype
            assert torch.equal(one, other.to(dtype))


def test_arguments_are_new_leaves_and_repeats_and_parameters_are_shared() -> None:
    recipes = (Normal((7, 5)), SameAs(0), Integers((7,), high=5), ParameterNamed("weight"))
    materials = of(stages=(StageCase("odd", "odd arguments", lambda: nn.Linear(5, 3), recipes),))
    stage = materials.stage(0)
    first, same, integers, weight = materials.args(0, 0, stage)
    assert first is same
    assert first.is_leaf
    assert first.requires_grad
    assert integers.dtype == torch.int64
    assert weight is stage.weight


def test_prior_gradients_are_on_trainable_parameters_only() -> None:
    def frozen() -> nn.Module:
        linear = nn.Linear(5, 3)
        linear.bias.requires_grad_(False)  # noqa: FBT003 (torch's own name for it)
        return linear

    stage = of(stages=(StageCase("frozen", "a frozen bias", frozen, (Normal((7, 5)),)),), prior_grads=True).stage(0)
    assert isinstance(stage.weight.grad, Tensor)
    assert stage.bias.grad is None


def test_a_wrong_pattern_applies_only_to_misuses() -> None:
    materials = of(output_grads="short", program="F0 B0!")
    assert len(materials.output_grads(0, 0)) == 1
    assert len(materials.output_grads(0, 0, misuse=True)) == 0


def test_manual_output_gradients_are_none_except_where_the_trial_has_them() -> None:
    pair = StageCase("pair", "two outputs", _Pair, (Normal((7, 5)),))
    materials = of(stages=(pair,), hand_grads=(False, True))
    first, second = materials.hand_grads(0, 0)
    assert first is None
    assert second is not None
    assert torch.equal(second, materials.output_grads(0, 0)[1])


def test_example_outputs_have_no_graph_and_keep_requires_grad() -> None:
    (example,) = tensors(of().example_outputs(0))
    assert example.shape == (7, 3)
    assert example.requires_grad
    assert example.grad_fn is None


def test_the_loss_adds_the_mean_square_of_every_output_that_has_a_target() -> None:
    outputs = {"a": torch.tensor([1.0, 3.0]), "b": (torch.tensor([[5.0]]), torch.tensor([9]), "text")}
    target = {"a": torch.tensor([0.0, 1.0]), "b": (torch.tensor([[2.0]]), None, None)}
    assert mean_squares(outputs, target).item() == pytest.approx((1 + 4) / 2 + 9)
    assert [path for path, _ in leaves(outputs)] == ["['a']", "['b'][0]", "['b'][1]", "['b'][2]"]


def test_the_loss_of_a_complex_output_is_real() -> None:
    loss = mean_squares(torch.tensor([3 + 4j]), (torch.tensor([0j]),))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(25.0)


def test_replaced_materials_keep_the_draw_of_the_trial() -> None:
    trial = Trial(stages=(LINEAR,), program="F0 B0", draw=3)
    materials = Materials(trial, dtype=torch.float64, device=torch.device("cpu"), seed=20)
    other = replaced(materials, torch.device("cpu"), watch=frozenset({"state"}))
    assert torch.equal(other.drawn(0, 0)[0], materials.drawn(0, 0)[0])
    assert other.seed == materials.seed
