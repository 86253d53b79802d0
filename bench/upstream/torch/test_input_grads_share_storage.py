# Owner(s): ["oncall: distributed"]
import torch
from torch.distributed.pipelining._backward import stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_input_grads_of_a_sum_share_no_storage(self):
        x, y = torch.randn(7, requires_grad=True), torch.randn(7, requires_grad=True)
        grad = torch.randn(7)
        found, _ = stage_backward_input([x + y], [grad], [x, y], iter([]))
        places = {tensor.data_ptr() for tensor in (*found, grad)}
        self.assertEqual(len(places), 3)


if __name__ == "__main__":
    run_tests()
