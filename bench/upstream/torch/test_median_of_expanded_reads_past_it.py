# Owner(s): ["module: tests"]
import torch
from torch.testing._internal.common_utils import TestCase, run_tests


class MedianTests(TestCase):
    def test_median_along_an_expanded_dimension(self):
        rows = torch.tensor([5.0, 1.0, 4.0, 9.0, 9.0])[:3].expand(3, 3)
        self.assertEqual(torch.median(rows, 0).values, rows[0])
        self.assertEqual(torch.nanmedian(rows, 0).values, rows[0])


if __name__ == "__main__":
    run_tests()
