import os

import torch
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_the_gradient_of_an_overlapping_as_strided_is_a_sum_under_a_mode():
    values = torch.zeros(4).to(torch_xla.device()).requires_grad_()
    grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(torch_xla.device())
    with Passing():
        values.as_strided((2, 2), (1, 1)).backward(grad)
    torch.testing.assert_close(values.grad.cpu(), torch.tensor([1.0, 5.0, 4.0, 0.0]))
