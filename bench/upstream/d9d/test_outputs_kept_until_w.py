import gc
import weakref

import torch
from d9d.pipelining.infra.stage.computations import BackwardComputeHandler, BackwardSeedTransfer
from torch import nn


def test_outputs_are_gone_after_the_input_backward():
    linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    handler = BackwardComputeHandler(stage_index=1, module=linear, has_input_peer=True)
    output = linear(x)
    alive = weakref.ref(output)
    handler.backward_input(0, [x], BackwardSeedTransfer([output], [torch.ones(7, 3)]))
    del output
    gc.collect()
    assert alive() is None
