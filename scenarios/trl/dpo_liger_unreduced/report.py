"""Train DPO with use_liger_kernel on two ranks for a step: do they have the same weights?

Needs torch with Triton, trl, liger-kernel, and from trl 1.14 on a GPU. Exit code 3: the bug."""

import tempfile

import accelerate
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch._dynamo.config.disable = True
words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
texts = [{"prompt": f"w{n} w5", "chosen": f" w{n + 9}", "rejected": " w4"} for n in range(5, 13)]
data = Dataset.from_list(texts)
sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
kernels = ("rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy")
once = {"max_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.1}
once |= {"use_cpu": True, "save_strategy": "no", "report_to": [], "use_liger_kernel": True}
once |= {"lr_scheduler_type": "constant", "liger_kernel_config": dict.fromkeys(kernels, False)}


def train(sums: torch.Tensor) -> None:
    args = trl.DPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=4, **once)
    torch.manual_seed(0)
    both = [LlamaForCausalLM(LlamaConfig(**sizes)) for _ in range(2)]
    trl.DPOTrainer(*both, args, None, data, processing_class=tokenizer).train()
    sums[torch.distributed.get_rank()] = sum(float(p.double().sum()) for p in both[0].parameters())


sums = torch.zeros(2, dtype=torch.float64).share_memory_()
accelerate.debug_launcher(train, (sums,), num_processes=2)
print(f"trl {trl.__version__}: after a step the ranks' weights have the sums {sums.tolist()}")
has_bug = bool(sums[0] != sums[1])
print("WRONG: each rank trains its own model" if has_bug else "right: both ranks have the same")
raise SystemExit(3 if has_bug else 0)
