import os

import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla


def test_as_strided_of_a_transpose_takes_the_elements_of_the_same_memory():
    values = torch.arange(12.0).reshape(3, 4)
    got = values.to(torch_xla.device()).t().as_strided((2, 2), (4, 1), 1).cpu()
    torch.testing.assert_close(got, values.t().as_strided((2, 2), (4, 1), 1))
