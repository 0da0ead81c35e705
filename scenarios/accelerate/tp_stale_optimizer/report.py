"""Make SGD, then prepare a tensor-parallel model and this SGD: does it train all parameters?

Needs torch, accelerate and transformers, and no GPU. The exit code is 3 if the bug is there."""

import accelerate
import torch
import transformers
from torch.distributed.tensor import DTensor, Replicate, parallel


def train(counts: torch.Tensor) -> None:
    """Count the parameters and those that a step moves: the sharded ones, and the others."""
    parallelism = accelerate.ParallelismConfig(tp_size=2)
    parallelism._validate_accelerator = lambda _: None  # it only demands a GPU
    accelerator = accelerate.Accelerator(cpu=True, parallelism_config=parallelism)
    gathered = parallel.ColwiseParallel(output_layouts=Replicate())
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4)
    model, mesh = transformers.LlamaForCausalLM(config), accelerator.torch_device_mesh["tp"]
    parallel.parallelize_module(model.model.layers[0].mlp, mesh, {"up_proj": gathered})
    model._tp_size, model._device_mesh = 2, mesh  # from_pretrained does it on GPUs
    sharded = [name for name, weight in model.named_parameters() if isinstance(weight, DTensor)]
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    tokens = torch.arange(32).reshape(2, 16)
    accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
    optimizer.step()
    for name, weight in model.named_parameters():
        has_moved = bool((weight.detach() - before[name]).norm() > 0)
        if accelerator.is_main_process:
            counts[int(name not in sharded)] += torch.tensor([1, has_moved])


if __name__ == "__main__":
    counts = torch.zeros(2, 2, dtype=torch.long).share_memory_()
    accelerate.debug_launcher(train, (counts,), num_processes=2)
    (split, trained), (others, moves) = counts.tolist()
    print(f"accelerate {accelerate.__version__}: {trained} of {split} sharded parameters moved")
    print("WRONG:" if moves < others else "right:", f"{moves} of {others} other parameters moved")
    raise SystemExit(3 if moves < others else 0)
