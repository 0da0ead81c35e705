"""Evaluate BERT's classifier on 16 rows and two ranks: is eval_loss the mean loss of these rows?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import os
import tempfile

import torch
import torch.multiprocessing as mp
import transformers

RANKS = 2
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "WORLD_SIZE": str(RANKS)}


def evaluate(rank: int, folder: str) -> None:
    """Write the Trainer's eval_loss, and the mean loss by the model itself."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 32, (16, 8)), torch.arange(16) % 4
    rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.BertConfig(vocab_size=32, num_attention_heads=2, num_labels=4, **sizes)
    model = transformers.BertForSequenceClassification(config).eval()
    mean = float(model(input_ids=tokens, labels=labels).loss.detach())
    quiet = {"use_cpu": True, "ddp_backend": "gloo", "report_to": [], "disable_tqdm": True}
    args = transformers.TrainingArguments(folder, per_device_eval_batch_size=4, **quiet)
    loss = transformers.Trainer(model, args, eval_dataset=rows).evaluate()["eval_loss"]
    torch.save([loss, mean], f"{folder}/{rank}.pt")


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    mp.spawn(evaluate, (folder,), RANKS)  # type: ignore[attr-defined]
    loss, mean = torch.load(f"{folder}/0.pt")
    print(f"transformers {transformers.__version__}, {RANKS} ranks: eval_loss {loss:.4f}")
    bug = abs(loss / mean - 1) > 1e-3
    print(f"WRONG: it should be {mean:.4f}" if bug else f"right: the mean is {mean:.4f}")
    raise SystemExit(3 if bug else 0)
