# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.distributed.fake_pg import FakeStore


class DDPTensorParallelTest(TestCase):
    def test_tensor_parallel_layers_keep_their_parameters(self):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "tensor"))
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        parallelize_module(module, mesh["tensor"], {"0": ColwiseParallel()})
        DistributedDataParallel(module, device_mesh=mesh["replicas"])(torch.randn(2, 3))
        names = ["0.bias", "0.weight", "1.bias", "1.weight"]
        self.assertEqual(sorted(name for name, _ in module.named_parameters()), names)


if __name__ == "__main__":
    run_tests()
