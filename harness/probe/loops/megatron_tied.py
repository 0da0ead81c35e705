"""Stages with a tied embedding, of megatron-core before 0.7, whose replicas share the optimizer.

Wheels before 0.6 have gradient buffers for a distributed optimizer and lack the optimizer, so this
script has one: each replica steps its part of the weights, and then all get the weights of all.
--batch-size are the rows of all replicas. One rank has the whole model.
"""

import argparse

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

VOCABULARY, LENGTH, HIDDEN, LAYERS = 32, 8, 16, 4
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
stages = 2 if dist.get_world_size() > 1 else 1
parallel_state.initialize_model_parallel(pipeline_model_parallel_size=stages)
group = parallel_state.get_data_parallel_group()
replica, replicas = dist.get_rank(group), dist.get_world_size(group)
generator = torch.Generator().manual_seed(options.seed)
ids = torch.randint(VOCABULARY, (144, LENGTH + 1), generator=generator)
data = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
words = torch.randn(VOCABULARY, HIDDEN, generator=generator) * 0.3
squares = torch.randn(LAYERS, HIDDEN, HIDDEN, generator=generator) * 0.3
config = TransformerConfig(
    num_layers=LAYERS,
    hidden_size=HIDDEN,
    num_attention_heads=1,
    use_cpu_initialization=True,
    pipeline_model_parallel_size=stages,
    pipeline_dtype=torch.float32,
    finalize_model_grads_func=finalize_model_grads,
)


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.square = nn.Parameter(squares[number].clone())

    def forward(self, x):
        return x + nn.functional.gelu(nn.functional.linear(x, self.square))


class Stage(LanguageModule):
    model_type = ModelType.encoder_or_decoder
    share_embeddings_and_output_weights = True

    def __init__(self):
        super().__init__(config)
        number, each = parallel_state.get_pipeline_model_parallel_rank(), LAYERS // stages
        self.pre_process, self.post_process = number == 0, number == stages - 1
        if self.pre_process:
            self.embedding = nn.Module()
            self.embedding.word_embeddings = tensor_parallel.VocabParallelEmbedding(
                VOCABULARY, HIDDEN, init_method=lambda weight: weight.copy_(words), config=config
            )
        mine = range(number * each, (number + 1) * each)
        self.layers = nn.ModuleDict({str(n): Layer(n) for n in mine})
        if self.post_process:
            self.output_layer = tensor_parallel.ColumnParallelLinear(
                HIDDEN,
                VOCABULARY,
                config=config,
                init_method=lambda weight: weight.copy_(words),
                bias=False,
                gather_output=False,
                skip_weight_param_allocation=self.pre_process,
            )
        if hasattr(self, "setup_embeddings_and_output_layer"):
            self.setup_embeddings_and_output_layer()
        else:
            self.initialize_last_stage_with_word_embeddings()

    def set_input_tensor(self, received):
        self.received = received[0] if isinstance(received, list) else received

    def forward(self, tokens, labels):
        if self.pre_process:
            x = self.embedding.word_embeddings(tokens).transpose(0, 1).contiguous()
        else:
            x = self.received
        for layer in self.layers.values():
            x = layer(x)
        if not self.post_process:
            return x
        tied = self.shared_embedding_or_output_weight()
        return self.compute_language_model_loss(labels, self.output_layer(x, weight=tied)[0])


class Sharded:
    """AdamW, of which each replica steps the part of the buffers that it has the gradients of."""

    def __init__(self, model):
        buffers = model.grad_buffers.values() if before_0_6 else model.buffers
        self.places = [place for buffer in buffers for place in self.owned(buffer)]
        self.parts = [weight.detach().view(-1)[own] for weight, own in self.places]
        self.adam = torch.optim.AdamW([p for p in self.parts if len(p)], lr=1e-2)

    def owned(self, buffer):
        for weight, (start, end, number) in buffer.param_index_map.items():
            first, last = buffer.bucket_indices[number]
            size = (last - first) // replicas
            low = max(first + replica * size, start)
            high = min(first + (replica + 1) * size, end)
            yield weight, slice(low - start, max(low, high) - start)

    def step(self):
        for part, (weight, own) in zip(self.parts, self.places, strict=True):
            part.grad = weight.main_grad.view(-1)[own]
        self.adam.step()
        for part, (weight, own) in zip(self.parts, self.places, strict=True):
            whole = torch.zeros_like(weight).view(-1)
            whole[own] = part
            dist.all_reduce(whole, group=group)
            weight.data.view(-1).copy_(whole)


model = DistributedDataParallel(
    config,
    Stage().to(device),
    data_parallel_group=group,
    accumulate_allreduce_grads_in_fp32=True,
    overlap_grad_reduce=False,
    use_distributed_optimizer=True,
)
before_0_6 = hasattr(model, "grad_buffers")
optimizer = Sharded(model)


def forward(batches, model):
    tokens, labels = (x.to(device) for x in next(batches))
    return model(tokens, labels), mean


def mean(losses):
    loss = losses.mean()
    return loss, {"loss": loss.detach().clone()}


size = options.batch_size // replicas
own = slice(replica * size, (replica + 1) * size)
batches = ([x[own] for x in batch] for batch in DataLoader(data, options.batch_size))
for _ in range(len(data) // (options.batch_size * options.accum)):
    model.zero_grad_buffer(*([True] if before_0_6 else []))
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
