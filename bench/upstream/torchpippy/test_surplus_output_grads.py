import pytest
import torch
from pippy.backward import stage_backward


def test_more_output_grads_than_outputs_are_refused():
    linear = torch.nn.Linear(5, 3)
    x, grad = torch.randn(7, 5, requires_grad=True), torch.ones(7, 3)
    with pytest.raises(RuntimeError):
        stage_backward((linear(x),), (grad, grad), [x], "", [0])
