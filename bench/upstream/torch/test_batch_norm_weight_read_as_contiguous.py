# Owner(s): ["module: nn"]
import torch
from torch.nn import functional as F
from torch.testing._internal.common_utils import TestCase, run_tests


class BatchNormTests(TestCase):
    def test_backward_reads_the_strides_of_the_weight(self):
        x = torch.randn(4, 5, requires_grad=True)
        weight, grad = torch.randn(5, 2)[:, 0], torch.randn(4, 5)
        grads = []
        for scale in (weight, weight.contiguous()):
            out = F.batch_norm(x, None, None, scale, None, training=True)
            grads += torch.autograd.grad(out, x, grad)
        self.assertEqual(*grads)


if __name__ == "__main__":
    run_tests()
