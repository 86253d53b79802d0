# Owner(s): ["module: nn"]
import torch
from torch.nn import functional as F
from torch.testing._internal.common_utils import TestCase, run_tests


class CTCLossTests(TestCase):
    def test_the_strides_of_targets_are_read(self):
        log_probs = torch.randn(50, 3, 20).log_softmax(-1)
        targets = torch.randint(1, 20, (75, 2))[:, 0]
        lengths = [50, 50, 50], [30, 25, 20]
        loss = F.ctc_loss(log_probs, targets, *lengths)
        self.assertEqual(loss, F.ctc_loss(log_probs, targets.contiguous(), *lengths))


if __name__ == "__main__":
    run_tests()
