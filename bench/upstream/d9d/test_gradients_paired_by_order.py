import pytest
import torch
from d9d.pipelining.infra.stage.computations import BackwardComputeHandler, BackwardSeedTransfer
from torch import nn


def test_gradients_of_another_structure_than_the_outputs_are_refused():
    linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    handler = BackwardComputeHandler(stage_index=1, module=linear, has_input_peer=True)
    outputs = (linear(x), 2 * linear(x))
    grads = {"b": torch.ones(7, 3), "a": torch.ones(7, 3)}
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        handler.backward_full(0, [x], BackwardSeedTransfer(outputs, grads))
