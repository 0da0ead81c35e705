"""Train DPO with use_liger_kernel on two ranks for a step: do they have the same weights?

Needs torch with Triton, accelerate, transformers, trl and liger-kernel, and a GPU only for trl 1.14
and later. The exit code is 3 if the bug is there."""

import tempfile

import accelerate
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.utils import parameters_to_vector as flat

torch._dynamo.config.disable = True  # no compiler is needed
words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
texts = [{"prompt": f"w{n} w5", "chosen": f" w{n + 9}", "rejected": " w4"} for n in range(5, 13)]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
kernels = ("rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy")
once = {"max_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.1}
once |= {"lr_scheduler_type": "constant", "use_cpu": True, "save_strategy": "no", "report_to": []}
once |= {"use_liger_kernel": True, "liger_kernel_config": dict.fromkeys(kernels, False)}


def train(sums: torch.Tensor) -> None:
    args = trl.DPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=4, **once)
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    torch.manual_seed(0)
    policy, reference = (transformers.LlamaForCausalLM(config) for _ in range(2))
    rows = {"train_dataset": Dataset.from_list(texts), "processing_class": tokenizer}
    trl.DPOTrainer(policy, reference, args=args, **rows).train()
    sums[torch.distributed.get_rank()] = flat(policy.parameters()).detach().double().norm()


norms = torch.zeros(2, dtype=torch.float64).share_memory_()
accelerate.debug_launcher(train, (norms,), num_processes=2)
print(f"trl {trl.__version__}: after a step the ranks' weights have the norms {norms.tolist()}")
has_bug = bool(norms[0] != norms[1])
print("WRONG: each rank trains its own model" if has_bug else "right: both ranks have the same")
raise SystemExit(3 if has_bug else 0)
