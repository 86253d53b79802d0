import gc
import weakref

import torch
from pippy.backward import stage_backward


def test_the_output_is_gone_without_the_garbage_collector():
    linear = torch.nn.Linear(5, 3)
    gc.disable()
    try:
        output = linear(torch.randn(7, 5, requires_grad=True))
        alive = weakref.ref(output)
        stage_backward((output,), (torch.ones(7, 3),), [], "", [0])
        del output
        assert alive() is None
    finally:
        gc.enable()
