"""Train a GPT with a sliding window on two packed documents: does one see the other?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

import torch
from megatron.core import __version__ as version
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29802", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)
base = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "init_method_std": 0.2}
base |= {"hidden_dropout": 0.0, "attention_dropout": 0.0, "masked_softmax_fusion": False}
position, document = torch.arange(16)[None], torch.arange(16) // 8
mask = torch.ones(16, 16).triu(1).bool() | (document[:, None] != document)
first, other, second = torch.randint(32, (3, 1, 8), generator=torch.Generator().manual_seed(0))


def change(**window: object) -> float:
    """How much the logits of the second document change with another first one, at most."""
    torch.manual_seed(0)
    config = TransformerConfig(**base, **window, use_cpu_initialization=True)
    model = GPTModel(config, get_gpt_layer_local_spec(), 32, 16)
    packed = [torch.cat([before, second], 1) for before in (first, other)]
    logits = [model(tokens, position, mask[None, None])[0, 8:] for tokens in packed]
    return float((logits[0] - logits[1]).abs().max())


without, with_window = change(), change(window_size=(4, 0))
print(f"megatron-core {version}: with another first document in the row, the logits of the second")
print(f"change by up to {with_window:.4f} with a window, by {without:.4f} without one")
print("WRONG: the mask is ignored" if with_window > 1e-3 else "right: the mask is applied")
raise SystemExit(3 if with_window > 1e-3 else 0)
