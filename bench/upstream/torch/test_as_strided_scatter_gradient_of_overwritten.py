# Owner(s): ["module: autograd"]
import torch
from torch.testing._internal.common_utils import TestCase, run_tests


class AsStridedScatterTests(TestCase):
    def test_input_gets_the_gradient_of_kept_elements(self):
        kept = torch.zeros(4, requires_grad=True)
        torch.as_strided_scatter(kept, torch.ones(2), (2,), (1,)).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.assertEqual(kept.grad, torch.tensor([0.0, 0.0, 3.0, 4.0]))


if __name__ == "__main__":
    run_tests()
