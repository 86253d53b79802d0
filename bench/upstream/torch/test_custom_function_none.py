# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_custom_function_returns_none_for_its_weight(self):
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(weight)
                return x * weight

            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.saved_tensors[0], None

        weight, x = nn.Parameter(torch.randn(7)), torch.randn(7, requires_grad=True)
        output = Product.apply(x, weight)
        _, groups = stage_backward_input([output], [torch.ones(7)], [x], iter([weight]))
        stage_backward_weight(iter([weight]), groups)
        self.assertIsNone(weight.grad)


if __name__ == "__main__":
    run_tests()
