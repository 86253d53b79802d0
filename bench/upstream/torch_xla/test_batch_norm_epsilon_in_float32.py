import os

import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch_xla


def test_a_batch_norm_in_float64_does_not_round_its_epsilon():
    torch.manual_seed(0)
    x = torch.randn(7, 11, dtype=torch.float64)
    got = torch.nn.functional.batch_norm(x.to(torch_xla.device()), None, None, training=True)
    expected = torch.nn.functional.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-14, atol=1e-14)
