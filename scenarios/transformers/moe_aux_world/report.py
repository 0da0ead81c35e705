"""Train Mixtral on 1 and 2 ranks, with 1 and 2 micro-batches: is its auxiliary loss right?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile

import torch
import transformers

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29661"}
tokens = torch.randint(0, 32, (12,), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": tokens, "labels": tokens}] * 32  # equal, so each batch has the same losses
sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 8}
router = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.5}
once = {"max_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 1.0, "use_cpu": True}


def train(rank: int, ranks: int, k: int, out: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **router))
    gate = next(each for name, each in model.named_parameters() if "gate.weight" in name)
    before, output = gate.detach().clone(), model(tokens[None], labels=tokens[None])
    balance = torch.autograd.grad(0.5 * output.aux_loss, gate, retain_graph=True)[0].flatten()
    task = torch.autograd.grad(output.loss, gate)[0].flatten() - balance
    args = transformers.TrainingArguments(out, gradient_accumulation_steps=k, report_to=[], **once)
    transformers.Trainer(model, args, train_dataset=rows).train()
    both = torch.linalg.lstsq(torch.stack([task, balance], 1), (before - gate.detach()).view(-1, 1))
    torch.save(both.solution.flatten().tolist(), f"{out}/{rank}.pt")


if __name__ == "__main__":
    for n, k in ((1, 1), (1, 2), (2, 2)):
        torch.multiprocessing.spawn(train, (n, k, out := tempfile.mkdtemp()), n)  # type: ignore
        task, aux = torch.load(f"{out}/0.pt")
        print(f"{n} ranks, {k} micro-batches: task's gradient x {task:.4f}, auxiliary x {aux:.4f}")
    has_bug = aux > 1.5 * task  # by ranks only where the Trainer averages tokens across devices
    print("WRONG" if has_bug else "right: each is 1", f"({transformers.__version__})")
    raise SystemExit(3 if has_bug else 0)
