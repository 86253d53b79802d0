import os

import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla


def test_a_gelu_in_float64_has_the_precision_of_float64():
    values = torch.linspace(-3, 3, 25, dtype=torch.float64)
    got = torch.nn.functional.gelu(values.to(torch_xla.device())).cpu()
    torch.testing.assert_close(got, torch.nn.functional.gelu(values), rtol=1e-14, atol=1e-14)
