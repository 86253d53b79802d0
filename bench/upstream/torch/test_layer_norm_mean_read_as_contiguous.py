# Owner(s): ["module: nn"]
import torch
from torch.testing._internal.common_utils import TestCase, run_tests


class LayerNormTests(TestCase):
    def test_backward_reads_the_strides_of_what_is_saved(self):
        x, grad = torch.randn(4, 5), torch.randn(4, 5)
        _, mean, rstd = torch.native_layer_norm(x, (5,), None, None, 1e-5)
        apart = torch.stack([mean, torch.zeros_like(mean)], -1)[..., 0]
        backward = torch.ops.aten.native_layer_norm_backward
        rest = (rstd, None, None, [True, False, False])
        got, right = (backward(grad, x, [5], saved, *rest)[0] for saved in (apart, mean))
        self.assertEqual(got, right)


if __name__ == "__main__":
    run_tests()
