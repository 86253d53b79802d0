import gc
import weakref

import torch
from fairscale.nn import Pipe
from torch import nn


def test_the_input_is_gone_after_its_backward():
    pipe = Pipe(nn.Sequential(nn.Linear(5, 3)), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    x = torch.randn(7, 5, requires_grad=True)
    pipe(x).sum().backward()
    alive = weakref.ref(x)
    del x
    gc.collect()
    gone = alive() is None
    del pipe  # at exit it would wait for workers that are gone
    assert gone
