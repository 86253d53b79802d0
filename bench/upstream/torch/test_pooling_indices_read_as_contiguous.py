# Owner(s): ["module: nn"]
import torch
from torch.nn import functional as F
from torch.testing._internal.common_utils import TestCase, run_tests


class PoolingIndicesTests(TestCase):
    def test_backwards_read_the_strides_of_indices(self):
        x = torch.randn(1, 2, 5, 5, 5)
        samples = torch.full((1, 2, 3), 0.5)
        cases = (
            ("adaptive_max_pool3d", x, (3,), ()),
            ("fractional_max_pool2d", x[:, :, 0], (2, 3, None, True, samples[..., :2]), ([2, 2], [3, 3])),
            ("fractional_max_pool3d", x, (2, 3, None, True, samples), ([2, 2, 2], [3, 3, 3])),
        )
        for name, given, args, sizes in cases:
            out, indices = getattr(F, f"{name}_with_indices")(given, *args)
            grad = torch.randn_like(out)
            backward = getattr(torch.ops.aten, f"{name}_backward")
            apart = torch.stack([indices, indices], -1)[..., 0]
            self.assertEqual(backward(grad, given, *sizes, apart), backward(grad, given, *sizes, indices))


if __name__ == "__main__":
    run_tests()
