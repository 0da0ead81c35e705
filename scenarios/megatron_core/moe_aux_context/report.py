"""Balance the experts of an MoE over a sequence that two ranks share: is the gradient that of all?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from megatron.core import __version__, distributed, parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils, router
from torch.multiprocessing.spawn import spawn

base: Any = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "num_moe_experts": 4}
base |= {"moe_aux_loss_coeff": 1.0, "add_bias_linear": False, "init_method": torch.nn.init.eye_}
base |= {"finalize_model_grads_func": distributed.finalize_model_grads}
tokens = torch.randn(32, 1, 8, generator=torch.Generator().manual_seed(0))


def gradients(rank: int) -> list[torch.Tensor]:  # megatron-core's, plain torch's of all tokens
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29818", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    config, options = TransformerConfig(**base), distributed.DistributedDataParallelConfig()
    top: Any = router.TopKRouter(config, moe_utils.get_default_pg_collection())
    top.layer_number, top.set_input_tensor, top.model_type = 1, id, None
    step: Any = {"model": distributed.DistributedDataParallel(config, options, top)}
    step |= {"num_microbatches": 1, "seq_length": 32, "forward_only": False}
    step["forward_step_func"] = lambda rows, model: (model(rows)[0], lambda y: (y.sum() * 0, {}))
    get_forward_backward_func()(data_iterator=tokens.chunk(2)[rank], micro_batch_size=1, **step)
    p = torch.softmax(tokens[:, 0] @ top.weight.T, -1)
    chosen = torch.zeros_like(p).scatter(1, p.topk(2).indices, 0.5).mean(0)
    return [top.weight.main_grad, *torch.autograd.grad(4 * p.mean(0) @ chosen, top.weight)]


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    ratio = float(torch.div(*map(torch.norm, gradients(1))))
    print(f"megatron-core {__version__}: {ratio:.4f} times the right gradient on 2 ranks")
    print("WRONG: it is divided by the ranks" if ratio < 0.99 else "right: that of all tokens")
    raise SystemExit(3 if ratio < 0.99 else 0)
