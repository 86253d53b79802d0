import os

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipelineParallelGrid
from deepspeed.runtime.utils import clip_grad_norm_
from torch.testing._internal.distributed.fake_pg import FakeStore

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def test_gradients_of_the_second_stage_count_in_the_norm():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    grid = PipelineParallelGrid(PipeDataParallelTopology(num_pp=2, num_dp=1))
    deepspeed.utils.groups.mpu = grid
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.full((3,), 10.0)
    clip_grad_norm_([weight], max_norm=1.0, mpu=grid)
    assert weight.grad.norm() <= 1.001
