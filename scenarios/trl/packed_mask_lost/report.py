"""Pack a conversation with trl, with assistant_only_loss: which of its tokens have a label?

Needs torch and trl, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = {"<pad>": 0, "<unk>": 1, "question": 2, "answer": 3}
TEMPLATE = """{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"""
SIZES: Any = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}


def main(folder: str) -> list[int]:
    backend = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    tokenizer.eos_token, tokenizer.chat_template = "<pad>", TEMPLATE
    turns = [{"role": "user", "content": "question "}, {"role": "assistant", "content": "answer "}]
    options: Any = {"use_cpu": True, "bf16": False, "report_to": [], "assistant_only_loss": True}
    config = SFTConfig(output_dir=folder, packing=True, max_length=8, **options)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4, num_hidden_layers=1, **SIZES))
    rows: Any = Dataset.from_dict({"messages": [turns, turns]})
    trainer = SFTTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer)
    return next(iter(trainer.get_train_dataloader()))["labels"].flatten().tolist()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        labels = main(folder)
    has_bug = WORDS["question"] in labels
    print(f"trl {version('trl')}: the labels are {labels}; 2 is the user's, 3 the assistant's")
    print("WRONG: the user's turn is trained" if has_bug else "right: only the assistant's is")
    raise SystemExit(3 if has_bug else 0)
