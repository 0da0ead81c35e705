"""Train DoRA on a base of 4 bits for 8 steps with trl: do the magnitudes change?

Needs torch, transformers, trl, peft and bitsandbytes from 0.49 on, and no GPU, except trl 1.15,
which needs Triton. The exit code is 3 if the bug is there."""

import tempfile

import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
sizes = {"vocab_size": 32, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
folder = tempfile.mkdtemp()
config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
transformers.LlamaForCausalLM(config).save_pretrained(folder)
bits = transformers.BitsAndBytesConfig(load_in_4bit=True)
base = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=bits)
once = {"max_steps": 8, "learning_rate": 2e-4, "use_cpu": True, "save_strategy": "no"}
args = trl.SFTConfig(folder, bf16=False, report_to=[], gradient_checkpointing=False, **once)
rows = Dataset.from_dict({"text": [f"w{n} w{n + 1} w{n + 2} w{n + 3}" for n in range(2, 28)]})
dora = LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "v_proj"])
trainer = trl.SFTTrainer(base, args, None, rows, processing_class=tokenizer, peft_config=dora)
weights = {n: p for n, p in trainer.model.named_parameters() if "magnitude" in n}
before = {name: weight.detach().clone() for name, weight in weights.items()}
trainer.train()
moved = max(float((weights[name] - old).abs().max()) for name, old in before.items())
types = {str(weight.dtype) for weight in weights.values()}
print(f"trl {trl.__version__}: magnitudes in {types} moved by up to {moved:.4f}")
print("WRONG: they never change" if moved == 0 else "right: they are trained")
raise SystemExit(3 if moved == 0 else 0)
