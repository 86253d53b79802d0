import os

import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla


def test_as_strided_scatter_leaves_the_gap():
    values, written = torch.zeros(6), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    there = (one.to(torch_xla.device()) for one in (values, written))
    got = torch.as_strided_scatter(*there, (2, 2), (3, 1)).cpu()
    torch.testing.assert_close(got, torch.as_strided_scatter(values, written, (2, 2), (3, 1)))
