"""A small GPT of megatron-core, with its schedule, gradient buffers and optimizer.

--stages makes a pipeline, --replicas trains copies on parts of each micro-batch, and all other
ranks share each layer (tensor parallelism). --batch-size are the rows of all replicas. One rank has
the whole model.
"""

import argparse

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--stages", type=int, default=1)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--tied", action="store_true", help="the embedding to the output layer")
parser.add_argument("--sharded", action="store_true", help="megatron-core's distributed optimizer")
parser.add_argument("--gathered", action="store_true", help="the logits, from all ranks")
parser.add_argument("--smoothing", type=float, default=0.0, help="of labels")
parser.add_argument("--sinks", action="store_true", help="learnable ones in each head")
parser.add_argument("--frozen", action="store_true", help="all but the sinks and the norms")
parser.add_argument("--recompute", action="store_true", help="each layer")
parser.add_argument("--bf16", action="store_true", help="with weights in fp32 that are stepped")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
options = parser.parse_args()

dtype = torch.bfloat16 if options.bf16 else torch.float32
VOCABULARY, LENGTH, HIDDEN, HEADS, LAYERS = 32, 8, 16, 4, 2
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
ranks = dist.get_world_size()
device = torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
stages, replicas = (options.stages, options.replicas) if ranks > 1 else (1, 1)
parts = ranks // (stages * replicas)
parallel_state.initialize_model_parallel(parts, stages)
tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)  # nothing drops out
ids = torch.randint(
    VOCABULARY, (144, LENGTH + 1), generator=torch.Generator().manual_seed(options.seed)
)
data = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def drawn(weight):
    # The same on any number of ranks, whatever they have drawn before.
    generator = torch.Generator().manual_seed(options.seed + sum(weight.shape))
    with torch.no_grad():
        return weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)


recompute = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
config = TransformerConfig(
    num_layers=LAYERS,
    hidden_size=HIDDEN,
    num_attention_heads=HEADS,
    tensor_model_parallel_size=parts,
    pipeline_model_parallel_size=stages,
    pipeline_dtype=dtype,
    params_dtype=dtype,
    bf16=options.bf16,
    use_cpu_initialization=True,
    init_method=drawn,
    output_layer_init_method=drawn,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    masked_softmax_fusion=False,
    finalize_model_grads_func=finalize_model_grads,
    **({"softmax_type": "learnable"} if options.sinks else {}),
    **(recompute if options.recompute else {}),
)
model = GPTModel(
    config,
    get_gpt_layer_local_spec(),
    vocab_size=VOCABULARY,
    max_sequence_length=LENGTH,
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
    share_embeddings_and_output_weights=options.tied,
    parallel_output=parts == 1 or not options.gathered,
).to(device)
for name, parameter in model.named_parameters():
    parameter.requires_grad_(not options.frozen or "layernorm" in name or "softmax" in name)
    if name.endswith("softmax_offset"):
        heads = torch.linspace(-1, 1, HEADS).chunk(parts)
        parameter.data.copy_(heads[parallel_state.get_tensor_model_parallel_rank()])
model = Float16Module(config, model) if options.bf16 else model
buffers = DistributedDataParallelConfig(use_distributed_optimizer=options.sharded)
model = DistributedDataParallel(config, buffers, model)
settings = OptimizerConfig(
    optimizer=options.optimizer,
    lr=1e-2 if options.optimizer == "adam" else 0.1,
    weight_decay=0.0,
    clip_grad=options.clip,
    bf16=options.bf16,
    params_dtype=dtype,
    use_distributed_optimizer=options.sharded,
)
optimizer = get_megatron_optimizer(settings, [model])
mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
positions = torch.arange(LENGTH, device=device)


def forward(batches, model):
    tokens, labels = (x.to(device) for x in next(batches))
    where = positions.expand_as(tokens)
    if not options.smoothing:
        return model(tokens, where, mask, labels=labels), mean

    def smoothed(logits):
        return mean(
            tensor_parallel.vocab_parallel_cross_entropy(
                logits.transpose(0, 1).contiguous(), labels.t().contiguous(), options.smoothing
            )
        )

    return model(tokens, where, mask), smoothed


def mean(losses):
    loss = losses.mean()
    return loss, {"loss": loss.detach().clone()}


size = options.batch_size // replicas
replica = parallel_state.get_data_parallel_rank()
share = slice(replica * size, (replica + 1) * size)
batches = ([x[share] for x in batch] for batch in DataLoader(data, options.batch_size))
for _ in range(len(data) // (options.batch_size * options.accum)):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=batches,
        model=model,
        num_microbatches=options.accum,
        seq_length=LENGTH,
        micro_batch_size=size,
        forward_only=False,
    )
    optimizer.step()
