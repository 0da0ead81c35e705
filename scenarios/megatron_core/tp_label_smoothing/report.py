"""Smooth labels in vocab_parallel_cross_entropy on two ranks: are the loss and gradient torch's?

Needs torch and megatron-core, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch.multiprocessing.spawn import spawn

torch.manual_seed(0)
logits, labels = torch.randn(8, 16), torch.randint(16, (8,))  # of 8 tokens, over 16 classes


def results(rank: int) -> Any:
    """The loss on each of the ranks, and the gradient of its part of the logits."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29622", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    part: Any = logits.chunk(2, -1)[rank].clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(part, labels, label_smoothing=0.1).mean()
    loss.backward()
    pairs: list[Any] = [None, None]
    torch.distributed.all_gather_object(pairs, (loss.item(), part.grad))
    return pairs


if __name__ == "__main__":
    spawn(results, join=False, daemon=True)  # rank 0
    losses, gradients = zip(*results(1), strict=True)
    rate = 0.1 * 16 / 15  # as torch also gives a part to the right class, and Megatron does not
    whole = torch.nn.functional.cross_entropy(logits.requires_grad_(), labels, label_smoothing=rate)
    gradient = torch.autograd.grad(whole, logits)[0]
    off = float((torch.cat(gradients, -1) - gradient).norm() / gradient.norm())
    print("megatron-core", version("megatron-core"), "has losses", *(f"{x:.4f}" for x in losses))
    print(f"torch has {whole:.4f}; the gradient of the logits is wrong by {off:.2%}")
    print("WRONG: each rank smooths its part" if off > 1e-4 else "right: both are torch's")
    raise SystemExit(3 if off > 1e-4 else 0)
