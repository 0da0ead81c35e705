"""Megatron-core's MoE router under sequence parallelism, with its schedule and optimizer.

The ranks hold parts of one sequence, --batch-size tokens each. --masked has a padding mask.
"""

import argparse

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--masked", action="store_true")
options = parser.parse_args()

HIDDEN, EXPERTS, ROWS = 16, 4, 2
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
if on_gpu:
    torch.cuda.set_device(rank)
device = torch.device("cuda" if on_gpu else "cpu")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
config = TransformerConfig(
    num_layers=1,
    hidden_size=HIDDEN,
    num_attention_heads=ranks,
    tensor_model_parallel_size=ranks,
    sequence_parallel=ranks > 1,
    use_cpu_initialization=True,
    add_bias_linear=False,
    finalize_model_grads_func=finalize_model_grads,
    num_moe_experts=EXPERTS,
    moe_router_topk=2,
    moe_router_load_balancing_type="aux_loss",
    moe_aux_loss_coeff=0.1,
    moe_token_dispatcher_type="alltoall",
    calculate_per_token_loss=True,
)


def groups():
    if hasattr(moe_utils, "get_default_pg_collection"):
        return {"pg_collection": moe_utils.get_default_pg_collection()}
    if hasattr(moe_utils, "get_default_model_comm_pgs"):
        return {"model_comm_pgs": moe_utils.get_default_model_comm_pgs()}
    return {}


class Model(MegatronModule):
    model_type = ModelType.encoder_or_decoder

    def __init__(self):
        super().__init__(config)
        self.router = TopKRouter(config=config, **groups())
        self.router.set_layer_number(1)
        generator = torch.Generator().manual_seed(options.seed)
        with torch.no_grad():
            self.router.weight.copy_(torch.randn(EXPERTS, HIDDEN, generator=generator))

    def forward(self, inputs, padded):
        mask = {"padding_mask": padded} if options.masked else {}
        probabilities = self.router(inputs, **mask)[0].view(*inputs.shape[:2], EXPERTS)
        if ranks == 1:
            return probabilities
        return gather_from_sequence_parallel_region(
            probabilities, tensor_parallel_output_grad=False
        )

    def set_input_tensor(self, _):
        """Upstream calls it in pipelines."""


model = DistributedDataParallel(config, DistributedDataParallelConfig(), Model().to(device))
settings = OptimizerConfig(optimizer="sgd", lr=0.1, sgd_momentum=0.0, weight_decay=0.0)
optimizer = get_megatron_optimizer(settings, [model])
length = options.batch_size * ranks
padded = torch.zeros(length, ROWS, dtype=torch.bool)
if options.masked:
    padded[-length // 4 :, 0] = True


def forward(data, model):
    inputs, values = next(data)
    share = slice(rank * options.batch_size, (rank + 1) * options.batch_size)
    outputs = model(inputs[share], padded[share].to(device))

    def loss(outputs):
        losses = (outputs * values).sum(-1)[~padded.to(device)]
        count = torch.tensor(losses.numel(), dtype=torch.int, device=device)
        return losses.sum(), count, {"loss": losses.detach().mean()}

    return outputs, loss


generator = torch.Generator().manual_seed(1)
for _ in range(100):
    inputs = torch.randn(length, ROWS, HIDDEN, generator=generator).to(device)
    values = torch.randn(length, ROWS, EXPERTS, generator=generator).to(device)
    model.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter([(inputs, values)]),
        model=model,
        num_microbatches=1,
        seq_length=length,
        micro_batch_size=ROWS,
        forward_only=False,
    )
    optimizer.step()
