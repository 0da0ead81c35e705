"""Fine-tune on texts with pad_token = eos_token: is the end of each text trained?

Needs torch, transformers and trl, and no GPU. The exit code is 3 if the bug is there.
"""

import inspect
import tempfile

import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(30)} | {"</s>": 30, "<u>": 31}))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"pad_token": "</s>", "eos_token": "</s>", "unk_token": "<u>"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names)
texts = [" ".join([*(f"w{n}" for n in range(3 + row)), "</s>"]) for row in range(8)]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
settings = {"per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "bf16": False}
args = trl.SFTConfig(tempfile.mkdtemp(), **settings, dataset_text_field="text")
accepted = inspect.signature(trl.SFTTrainer.__init__).parameters
name = "processing_class" if "processing_class" in accepted else "tokenizer"  # since trl 0.12
rows = Dataset.from_dict({"text": texts})
trainer = trl.SFTTrainer(model, args=args, train_dataset=rows, **{name: tokenizer})
ends = others = 0
for batch in trainer.get_train_dataloader():
    ends += int((batch["labels"] == tokenizer.eos_token_id).sum())
    others += int(((batch["labels"] >= 0) & (batch["labels"] != tokenizer.eos_token_id)).sum())
total = sum(len(text.split()) for text in texts) - len(texts)
print(f"trl {trl.__version__}: {ends} of {len(texts)} ends are labels, {others} of {total} words")
print("WRONG: no end is trained" if ends == 0 else "right: each end is trained")
raise SystemExit(3 if ends == 0 else 0)
