from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch import nn

from gradconform.adapter import StageSpec
from gradconform.plugins.adapters.torch_stage import TorchDwBuilderAdapter, TorchStageAdapter, TorchStageSession
from gradconform.target.resolve import resolve


def opened(adapter: Any, **spec: Any) -> TorchStageSession:
    """Return a session on one Linear for two micro-batches."""
    args, outputs = (torch.randn(7, 5, requires_grad=True),), torch.zeros(7, 3, requires_grad=True)
    given = {"n_microbatches": 2, "example_args": args, "example_outputs": outputs, **spec}
    session: TorchStageSession = adapter.open(nn.Linear(5, 3), StageSpec(**given))
    return session


def forward(session: TorchStageSession, mb: int = 0) -> Any:
    """Run F on new arguments."""
    return session.forward(mb, (torch.randn(7, 5, requires_grad=True),))


ADAPTERS = pytest.mark.parametrize(
    "adapter", [TorchStageAdapter(), TorchDwBuilderAdapter()], ids=["stage", "dw-builder"]
)


@ADAPTERS
def test_a_weight_pass_without_an_input_pass_names_stage_and_chunk(adapter: Any) -> None:
    session = opened(adapter)
    forward(session)
    with pytest.raises(AssertionError) as raised:
        session.backward_weight(0)
    assert_expected_inline(
        str(raised.value),
        """[Stage 1] Attempted to run backward_weight_one_chunk for chunk 0 without first calling `backward_one_chunk(full_backward=False)`""",  # noqa: E501 (as torch says it)
    )


@ADAPTERS
def test_a_weight_pass_after_a_full_backward_is_refused(adapter: Any) -> None:
    session = opened(adapter)
    forward(session)
    session.backward(0, (torch.ones(7, 3),))
    with pytest.raises(AssertionError, match="Attempted to run backward_weight_one_chunk for chunk 0"):
        session.backward_weight(0)


@ADAPTERS
def test_a_second_weight_pass_is_refused(adapter: Any) -> None:
    session = opened(adapter)
    forward(session)
    session.backward_input(0, (torch.ones(7, 3),))
    session.backward_weight(0)
    with pytest.raises((AssertionError, KeyError)):
        session.backward_weight(0)


@ADAPTERS
def test_a_chunk_outside_the_schedule_is_refused(adapter: Any) -> None:
    session = opened(adapter)
    with pytest.raises(KeyError, match="2"):
        forward(session, mb=2)


@ADAPTERS
@pytest.mark.parametrize("grads", [(), (torch.ones(7, 3), torch.ones(7, 3)), None, {"y": torch.ones(7, 3)}])
def test_output_gradients_that_do_not_match_the_outputs_are_refused(adapter: Any, grads: Any) -> None:
    session = opened(adapter)
    forward(session)
    with pytest.raises((AssertionError, ValueError)):
        session.backward(0, grads)


@ADAPTERS
def test_an_output_gradient_of_another_shape_names_both_shapes(adapter: Any) -> None:
    session = opened(adapter)
    forward(session)
    with pytest.raises(RuntimeError, match=r"(?s)\[7, 3\].*\[3, 7\]"):
        session.backward(0, (torch.ones(3, 7),))


@pytest.mark.parametrize(("first", "last"), [(False, False), (True, False), (False, True), (True, True)])
@ADAPTERS
def test_the_stage_position_follows_the_spec(adapter: Any, first: bool, last: bool) -> None:  # noqa: FBT001 (parametrised)
    loss_fn = (lambda outputs, _: outputs.sum()) if last else None
    session = opened(adapter, is_first=first, is_last=last, loss_fn=loss_fn)
    assert (session._stage.is_first, session._stage.is_last) == (first, last)
    forward(session)
    session.backward(0, None if last else (torch.ones(7, 3),))
    assert all(isinstance(grad, torch.Tensor) for grad in session.param_grads().values())


def test_close_restores_the_layers_of_the_stage() -> None:
    stage = nn.Sequential(nn.Linear(5, 3))
    args, outputs = (torch.randn(7, 5),), torch.zeros(7, 3)
    names = [name for name, _ in stage.named_parameters()]
    session = TorchDwBuilderAdapter().open(stage, StageSpec(example_args=args, example_outputs=outputs))
    assert type(stage[0]) is not nn.Linear
    assert [name for name, _ in stage.named_parameters()] == names
    session.close()
    assert type(stage[0]) is nn.Linear


@pytest.mark.parametrize("name", ["torch-stage", "torch-dw-builder"])
def test_a_report_has_the_version_and_file_of_torch(name: str) -> None:
    target = resolve(name)
    assert target.version == torch.__version__
    assert (target.file or "").endswith("torch/distributed/pipelining/stage.py")


IN_A_GROUP_OF_ANOTHER = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import gradconform
report = gradconform.check_stage_backward("torch-stage", checks=["full.gradients.mlp"])
assert report.results[0].status == "passed", report.results
assert dist.is_initialized()
dist.destroy_process_group()
"""


def test_an_existing_process_group_is_used_and_not_destroyed() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_GROUP_OF_ANOTHER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
