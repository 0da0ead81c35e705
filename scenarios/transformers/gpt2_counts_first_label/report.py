"""Train a causal LM for a step of SGD on 8 rows: is the update that of its own mean loss?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import tempfile

import torch
import transformers
from torch.nn.utils import parameters_to_vector as flat

LENGTH = 4
tokens = torch.randint(0, 32, (8, LENGTH), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": row} for row in tokens]
gpt2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
llama = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True}


def applied(model: transformers.PreTrainedModel) -> float:
    """How many times the gradient of the model's own loss on these rows was applied."""
    loss = model(input_ids=tokens, labels=tokens).loss
    gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
    before = flat(model.parameters()).detach().clone()
    batch = {"per_device_train_batch_size": 8}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **batch, **once)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0), None
    transformers.Trainer(model, args, train_dataset=rows, optimizers=sgd).train()
    return float((before - flat(model.parameters()).detach()) @ gradient / (gradient @ gradient))


config = transformers.GPT2Config(vocab_size=32, attn_pdrop=0.0, **gpt2)
ratio = applied(transformers.GPT2LMHeadModel(config))
control = applied(transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **llama)))
print(f"transformers {transformers.__version__}: GPT-2 {ratio:.3f}, LLaMA {control:.3f} (right: 1)")
print("WRONG: GPT-2's first label is counted" if ratio < 0.99 else "right: it is not counted")
raise SystemExit(3 if ratio < 0.99 else 0)
