"""transformers' Trainer with its own arguments, as in its examples; --model chooses a small model.

``--group-by-length`` is an argument of ours, as releases have different ones for it.
"""

import os
import sys
from dataclasses import dataclass, fields

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

# Old releases load their own checkpoints with the old default of torch.load.
os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
VOCABULARY, LENGTH, LABELS = 64, 12, 4


@dataclass
class Ours:
    model: str = "llama"
    rows: int = 144
    full_rows: bool = False
    """Rows without padding, all of the same length."""
    one_row: bool = False
    """Each row is the same: the balance of experts is that of the whole batch then."""
    dropout: float = 0.1
    augmented: bool = False
    """A token of each row is another one, drawn from torch's global generator."""
    evaluate: bool = False


GROUPED = "--group-by-length"
if GROUPED in sys.argv:
    sys.argv.remove(GROUPED)
    old = "group_by_length" in {field.name for field in fields(TrainingArguments)}
    new = ["--train_sampling_strategy", "group_by_length"]
    sys.argv += ["--group_by_length", "true"] if old else new
arguments, ours = HfArgumentParser((TrainingArguments, Ours)).parse_args_into_dataclasses()
set_seed(arguments.seed)

kind, drop = ours.model, ours.dropout


class Plain(torch.nn.Module):
    """A user's own module: it returns a mean and accepts no further keywords."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(16, VOCABULARY)

    def forward(self, input_ids, labels):
        logits = self.head(self.words(input_ids))
        scores, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return {"loss": torch.nn.functional.cross_entropy(scores, targets), "logits": logits}


if kind == "llama":
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, **sizes, **heads, attention_dropout=drop)
    )
elif kind == "mixtral":
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
    model = MixtralForCausalLM(
        MixtralConfig(vocab_size=VOCABULARY, **sizes, **heads, **experts, output_router_logits=True)
    ).float()
elif kind == "plain":
    model = Plain()
elif kind == "gpt2":
    sizes = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    drops = {"resid_pdrop": drop, "embd_pdrop": drop, "attn_pdrop": drop}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **drops))
elif kind == "bert-sequence":
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    drops = {"hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop}
    config = BertConfig(
        vocab_size=VOCABULARY, **sizes, **drops, num_attention_heads=2, max_position_embeddings=16
    )
    config.num_labels = LABELS
    model = BertForSequenceClassification(config)


class Rows(torch.utils.data.Dataset):
    """Rows of unequal length, padded with labels that do not count."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, VOCABULARY, (count, LENGTH), generator=generator)
        self.lengths = torch.randint(6, LENGTH + 1, (count,), generator=generator)
        if ours.full_rows:
            self.lengths.fill_(LENGTH)
        if ours.one_row:
            self.ids, self.lengths = self.ids[:1].expand(count, -1), self.lengths[:1].expand(count)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        if arguments_say_grouped():  # rows of their own length, which the collator pads
            ids = self.ids[index, : self.lengths[index]]
            return {"input_ids": ids, "labels": ids.clone()}
        keep = torch.arange(LENGTH) < self.lengths[index]
        ids = self.ids[index].where(keep, torch.zeros(()).long())
        if ours.augmented:
            ids[0] = torch.randint(1, VOCABULARY, ())
        if kind == "bert-sequence":
            labels = ids.sum() % LABELS
        else:
            labels = ids.where(keep, torch.tensor(-100))
        return {"input_ids": ids, "attention_mask": keep.long(), "labels": labels}


def arguments_say_grouped():
    strategy = getattr(arguments, "train_sampling_strategy", "")
    return getattr(arguments, "group_by_length", False) or strategy == "group_by_length"


def padded(rows):
    """Dynamic padding, as transformers' collators do it."""
    longest = max(len(row["input_ids"]) for row in rows)
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for row in rows:
        ids, gap = row["input_ids"], longest - len(row["input_ids"])
        batch["input_ids"].append(torch.cat([ids, ids.new_zeros(gap)]))
        batch["attention_mask"].append(torch.cat([torch.ones_like(ids), ids.new_zeros(gap)]))
        batch["labels"].append(torch.cat([ids, ids.new_full((gap,), -100)]))
    return {name: torch.stack(tensors) for name, tensors in batch.items()}


keywords = {"data_collator": padded} if arguments_say_grouped() else {}
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Rows(ours.rows, 0),
    eval_dataset=Rows(48, 1) if ours.evaluate else None,
    **keywords,
)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
