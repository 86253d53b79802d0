import gc
import weakref

import pytest
import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input
from torch import nn


def input_of_an_input_backward_that_raised():
    linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    wrong_shape = torch.ones(3, 7)
    with pytest.raises((ValueError, RuntimeError)):
        stage_backward_input([torch.tanh(linear(x))], [wrong_shape], [x], linear.parameters())
    return weakref.ref(x)


def test_an_input_backward_that_raises_lets_go_of_the_graph():
    gc.disable()
    try:
        assert input_of_an_input_backward_that_raised()() is None
    finally:
        gc.enable()
