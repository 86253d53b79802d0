# Owner(s): ["module: mkldnn"]
import torch
from torch.testing._internal.common_utils import TestCase, run_tests


class RnnLayerTests(TestCase):
    def test_mkldnn_rnn_layer_reads_the_strides_of_its_input(self):
        x = torch.randn(3, 1, 6, 2)[..., 0]
        weights = torch.randn(12, 6), torch.randn(12, 3), torch.randn(12), torch.randn(12)
        state = torch.randn(1, 3), torch.randn(1, 3)
        rest = (False, [], 2, 3, 1, True, False, False, True)
        got, right = (torch.mkldnn_rnn_layer(given, *weights, *state, *rest)[0] for given in (x, x.contiguous()))
        self.assertEqual(got, right)


if __name__ == "__main__":
    run_tests()
