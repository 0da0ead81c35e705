"""Train a GPT whose embedding is tied over two pipeline stages: do its two copies stay equal?

Needs torch and megatron-core from 0.10 on, and no GPU where calls of torch.cuda go to the CPU. The
exit code is 3 if the bug is there."""

import torch
from megatron.core import __version__, distributed, optimizer, parallel_state
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.transformer import TransformerConfig
from torch.multiprocessing.spawn import spawn

base = {"num_layers": 2, "num_attention_heads": 1, "pipeline_dtype": torch.float32}
base |= {"hidden_size": 8, "pipeline_model_parallel_size": 2, "use_cpu_initialization": True}


def distance(rank: int) -> float:
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29624", rank=rank, world_size=4)
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    torch.manual_seed(0)
    config, spec = TransformerConfig(**base), gpt_layer_specs.get_gpt_layer_local_spec()
    stage = {"pre_process": rank < 2, "post_process": rank > 1}  # the first and the last
    model = GPTModel(config, spec, 16, 16, **stage, share_embeddings_and_output_weights=True)
    options = distributed.DistributedDataParallelConfig(use_distributed_optimizer=True)
    ddp = distributed.DistributedDataParallel(config, options, model)
    adam = optimizer.OptimizerConfig(lr=0.01, use_distributed_optimizer=True)
    step, copies = optimizer.get_megatron_optimizer(adam, [ddp]).step, [torch.empty(0)] * 4
    torch.manual_seed(rank)  # so each rank has another gradient
    sum((each * torch.randn_like(each)).sum() for each in model.parameters()).backward()
    distributed.finalize_model_grads([ddp])
    step()
    torch.distributed.all_gather_object(copies, model.shared_embedding_or_output_weight().detach())
    return float((copies[0] - copies[3]).abs().max())


if __name__ == "__main__":
    spawn(distance, nprocs=3, join=False, daemon=True)  # ranks 0 to 2
    apart = distance(3)
    print(f"megatron-core {__version__}: after a step of 0.01 the copies differ by {apart:.4f}")
    print("WRONG: they drift apart" if apart > 0.001 else "right: they stay equal")
    raise SystemExit(3 if apart > 0.001 else 0)
