"""The right split in torch's stages: what they call inside a block, and that it is undone exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradconform import check_stage_backward
from gradconform.plugins.adapters.torch_stage import TorchStageAdapter, group_of_one
from gradconform.reference import in_torch, install, split, walked_twice
from gradconform.torch_releases import pipelining

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
RIGHT = {name: getattr(split, name) for name in pipelining.functions()}


def called() -> dict[str, Any]:
    """Return what stages of torch call now, by torch's names."""
    return {name.spellings[0]: name.find() for name in pipelining.CALLED_BY_STAGES}


def failed_in_stages(functions: Mapping[str, Any]) -> set[str]:
    """Return the checks with MUST that fail on a PipelineStage of torch with these functions in it.

    Of those with SHOULD, what a stage of torch 2.6 holds behind W is freed by a W that walks the whole graph alone.
    """
    before = pipelining.put_in_stages(functions)
    try:
        report = check_stage_backward(TorchStageAdapter(), profile="quick")
        return {result.check for result in report.failures if result.decisive}
    finally:
        pipelining.put_in_stages(before)


def as_in_stages(sharded: Any, *, last: bool) -> None:
    """Tell fully_shard what torch's stages tell it: what a backward gathers stays, and is reduced in the last."""
    sharded.set_is_last_backward(last)
    sharded.set_reshard_after_backward(last)
    sharded.set_requires_gradient_sync(last)


def test_stages_call_the_right_split_only_inside_the_block() -> None:
    before = called()
    with in_torch():
        assert called() == RIGHT
    assert called() == before
    assert before != RIGHT


def test_leaving_an_inner_block_keeps_the_outer_block_active() -> None:
    before = called()
    with in_torch():
        with in_torch():
            assert called() == RIGHT
        assert called() == RIGHT
    assert called() == before


def test_an_exception_also_restores_the_functions_of_torch() -> None:
    before = called()
    with pytest.raises(ZeroDivisionError), in_torch():
        _ = 1 // 0
    assert called() == before


def test_functions_that_another_library_installed_are_restored() -> None:
    def other() -> None:
        pass

    before = pipelining.put_in_stages({"stage_backward": other})
    try:
        with in_torch():
            assert called() == RIGHT
        assert called()["stage_backward"] is other
    finally:
        pipelining.put_in_stages(before)


def test_install_persists_after_a_block() -> None:
    before = called()
    try:
        install()
        with in_torch():
            pass
        assert called() == RIGHT
    finally:
        pipelining.put_in_stages(before)


def test_a_torch_without_the_needed_names_is_refused_and_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = called()
    gone = pipelining.Name("torch.distributed.pipelining.stage", ("no_such_function",), "its PipelineStage calls")
    monkeypatch.setattr(pipelining, "CALLED_BY_STAGES", (*pipelining.CALLED_BY_STAGES, gone))
    with pytest.raises(pipelining.UnavailableError, match="has no no_such_function"):
        install()
    monkeypatch.undo()
    assert called() == before


def test_the_module_exports_no_other_name() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from gradconform.reference import nothing  # type: ignore[attr-defined] # noqa: F401, PLC0415 (that is asked)


def test_in_torchs_stages_the_right_split_fails_only_checks_the_plain_split_fails() -> None:
    of_split, of_torch = failed_in_stages(RIGHT), failed_in_stages(called())
    plainest = {name: getattr(walked_twice, name) for name in RIGHT}
    assert sorted(of_split - failed_in_stages(plainest)) == []
    assert len(of_split) < len(of_torch)


@pytest.mark.skipif(RELEASE < (2, 8), reason="fully_shard reduces nothing on a CPU there")
def test_weights_that_fully_shard_frees_between_i_and_w_get_their_gradients() -> None:
    group_of_one()
    torch.manual_seed(20)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.LayerNorm(3))
    batches = [torch.randn(4, 3, requires_grad=True) for _ in range(3)]
    for batch in batches:
        module(batch).square().sum().backward()
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    for layer in (*module, module):
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)), reshard_after_forward=True)
    sharded: Any = module
    as_in_stages(sharded, last=False)
    contexts = []
    for batch in batches[:2]:  # the second forward takes away what I of the first has gathered
        output = module(batch)
        contexts.append(split.stage_backward_input([output], [2.0 * output.detach()], [batch], module.parameters())[1])
    for context in contexts:
        split.stage_backward_weight(module.parameters(), context)
    as_in_stages(sharded, last=True)
    module(batches[2]).square().sum().backward()
    found: dict[str, Any] = {name: parameter.grad for name, parameter in module.named_parameters()}
    torch.testing.assert_close({name: grad.full_tensor() for name, grad in found.items()}, expected)
