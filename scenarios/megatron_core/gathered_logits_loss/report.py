"""Train a GPT on two tensor-parallel ranks: is its loss torch's cross-entropy of all logits?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

import math

import torch
from megatron.core import __version__ as version
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from torch.multiprocessing.spawn import spawn

base = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 4, "hidden_dropout": 0.0}
base |= {"tensor_model_parallel_size": 2, "use_cpu_initialization": True, "attention_dropout": 0.0}
tokens, labels = torch.arange(16).view(1, 2, 8) % 5, torch.arange(1, 17).view(2, 8)


def losses(rank: int) -> list[float]:  # with logits in parts, with gathered ones, and torch's
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29801", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)
    torch.manual_seed(0)
    model = GPTModel(TransformerConfig(**base), get_gpt_layer_local_spec(), 32, 8)
    inputs = (tokens[0], torch.arange(8).expand(2, 8), torch.ones(1, 1, 8, 8).triu(1).bool())
    logits = model(*inputs, runtime_gather_output=True).flatten(0, 1)
    gathered = model(*inputs, labels=labels, runtime_gather_output=True)
    torchs = torch.nn.functional.cross_entropy(logits, labels.flatten())
    return [float(loss.mean()) for loss in (model(*inputs, labels=labels), gathered, torchs)]


if __name__ == "__main__":
    spawn(losses, join=False, daemon=True)  # rank 0
    in_parts, gathered, expected = losses(1)
    print(f"megatron-core {version}: torch's loss of all logits is {expected:.4f},")
    print(f"GPTModel's {in_parts:.4f} with logits in parts, {gathered:.4f} with gathered ones")
    text = f"WRONG: {gathered - expected:.4f} too high; log(2) is {math.log(2):.4f}"
    print(text if gathered - expected > 1e-4 else "right: alike")
    raise SystemExit(3 if gathered - expected > 1e-4 else 0)
