import os

import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla


def test_the_second_gradient_of_a_summed_parameter_is_added_once():
    gain = torch.ones(11).to(torch_xla.device()).requires_grad_()
    for _ in range(2):
        (gain.sum() * 2).backward()
    torch.testing.assert_close(gain.grad.cpu(), torch.full((11,), 4.0))
