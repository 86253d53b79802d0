import pytest
import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_full, stage_backward_input
from torch import nn


def test_more_output_grads_than_outputs_are_refused():
    linear, x, grad = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True), torch.ones(7, 3)
    with pytest.raises((ValueError, RuntimeError)):
        stage_backward_full([linear(x)], [grad, grad], [x])
    with pytest.raises((ValueError, RuntimeError)):
        stage_backward_input([linear(x)], [grad, grad], [x], linear.parameters())
