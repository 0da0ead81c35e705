"""Print the Trainer's update with gradient_accumulation_steps, divided by that without, on the same
16 rows: 1 is right. Needs torch, transformers and accelerate; takes seconds on a CPU."""
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import accelerate
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

tokens = torch.randint(0, 32, (16, 16), generator=torch.Generator().manual_seed(0))
labels = tokens.masked_fill(torch.arange(16) == 0, -100)
rows = [{"input_ids": t, "labels": l} for t, l in zip(tokens, labels)]


def update(accumulation: int) -> tuple[torch.Tensor, float]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32))
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    args = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, max_steps=1, per_device_train_batch_size=16 // accumulation,
        gradient_accumulation_steps=accumulation, max_grad_norm=0.0, logging_steps=1,
        save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False)
    constant = torch.optim.lr_scheduler.LambdaLR(sgd, lambda _: 1.0)
    trainer = Trainer(model, args, train_dataset=rows, optimizers=(sgd, constant))
    trainer.train()
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return after - before, trainer.state.log_history[0]["loss"]


print(f"transformers {transformers.__version__}, accelerate {accelerate.__version__}")
whole, loss = update(1)
for steps in (1, 2, 4, 8):
    part, logged = update(steps)
    print(f"GAS={steps}: update / right one = {part @ whole / (whole @ whole):.4f}, loss {logged:.4f}")
