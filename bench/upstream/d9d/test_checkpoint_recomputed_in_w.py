import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input, stage_backward_weight
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_split_backward_recomputes_a_checkpoint_as_often_as_a_full_one():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh())
    x = torch.randn(6, 5, requires_grad=True)

    checkpoint(block, x, use_reentrant=False).sum().backward()
    once = int(block[1].num_batches_tracked)

    output = checkpoint(block, x, use_reentrant=False)
    result = stage_backward_input([output], [torch.ones(6, 7)], [x], block.parameters())
    stage_backward_weight(block.parameters(), result.param_groups)
    assert int(block[1].num_batches_tracked) == 2 * once
