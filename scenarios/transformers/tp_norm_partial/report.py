"""Split Qwen3 over 2 ranks: has q_norm on each rank the gradient of the whole model?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import os
import tempfile
from pathlib import Path

import torch
import transformers


def rank(number: int, folder: str) -> None:
    """Write how far this rank's gradient is from the whole model's, as a part of its norm."""
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(number), "LOCAL_RANK": str(number)}
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    tokens, gradients = torch.arange(48).view(3, 16), []
    for how in ({}, {"tp_plan": "auto"}):
        model = transformers.Qwen3ForCausalLM.from_pretrained(folder, **how)
        model(input_ids=tokens, labels=tokens).loss.backward()
        part = model.model.layers[0].self_attn.q_norm
        gradients.append(torch.cat([p.grad.flatten() for p in part.parameters()]))
    off = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
    Path(folder, f"off-{number}").write_text(str(off))


if __name__ == "__main__":
    torch.manual_seed(0)
    size = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    with tempfile.TemporaryDirectory() as at:
        transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**size)).save_pretrained(at)
        torch.multiprocessing.spawn(rank, (at,), 2)
        one, two = (float(Path(at, f"off-{number}").read_text()) for number in range(2))
    print(
        f"transformers {transformers.__version__}: q_norm's gradients off by {one:.1%}, {two:.1%}"
    )
    print("WRONG: each rank has its own part" if one + two > 1e-3 else "right: all have the whole")
    raise SystemExit(3 if one + two > 1e-3 else 0)
