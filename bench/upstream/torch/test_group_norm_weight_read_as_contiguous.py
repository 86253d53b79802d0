# Owner(s): ["module: nn"]
import torch
from torch.testing._internal.common_utils import TestCase, run_tests


class GroupNormTests(TestCase):
    def test_native_group_norm_reads_the_strides_of_the_weight(self):
        x, weight = torch.randn(2, 5, 3), torch.randn(5, 2)[:, 0]
        out, _, _ = torch.native_group_norm(x, weight, None, 2, 5, 3, 1, 1e-5)
        right, _, _ = torch.native_group_norm(x, weight.contiguous(), None, 2, 5, 3, 1, 1e-5)
        self.assertEqual(out, right)


if __name__ == "__main__":
    run_tests()
