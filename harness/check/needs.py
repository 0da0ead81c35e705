"""What the packages with bugs need of each other, for what no resolver can look up."""

from __future__ import annotations

from collections.abc import Collection, Iterable

NEEDS = {
    "accelerate": ("huggingface-hub", "torch"),
    "ai2-olmo-core": ("torch",),
    "albumentations": (),
    "datasets": ("huggingface-hub",),
    "deepspeed": ("torch",),
    "diffusers": ("huggingface-hub",),
    "ema-pytorch": ("torch",),
    "fla-core": ("torch",),
    "flash-attn": ("torch",),
    "grain": (),
    "heavyball": ("torch",),
    "huggingface-hub": (),
    "keras": (),
    "lhotse": ("torch",),
    "liger-kernel": ("torch",),
    "lightly": ("pytorch-lightning", "torch"),
    "lightning": ("torch", "torchmetrics"),
    "litdata": ("torch",),
    "lm-eval": ("accelerate", "datasets", "peft", "torch", "transformers"),
    "megatron-core": ("torch",),
    "mmengine": ("torch",),
    "mosaicml": ("torch", "torchmetrics"),
    "mosaicml-streaming": ("torch", "transformers"),
    "opacus": ("torch",),
    "open-clip-torch": ("huggingface-hub", "timm", "torch"),
    "peft": ("accelerate", "huggingface-hub", "torch", "transformers"),
    "prodigyopt": ("torch",),
    "pytorch-ignite": ("torch",),
    "pytorch-lightning": ("torch", "torchmetrics"),
    "pytorch-metric-learning": ("torch",),
    "pytorch-optimizer": ("torch",),
    "sentence-transformers": ("huggingface-hub", "torch", "transformers"),
    "timm": ("huggingface-hub", "torch"),
    "torch": (),
    "torchao": ("torch",),
    "torchdata": ("torch",),
    "torchmetrics": ("torch",),
    "torchtitan": ("datasets", "huggingface-hub", "torch", "torchdata"),
    "torchtune": ("datasets", "huggingface-hub", "torch"),
    "transformers": ("huggingface-hub",),
    "trl": ("accelerate", "datasets", "torch", "transformers"),
    "vector-quantize-pytorch": ("torch",),
    "webdataset": (),
}
"""What a package needs, of those that this project knows: for an omission, and where nothing can
be resolved. Any release of the last two years needs these."""

NEEDS_ONE_RELEASE = {
    "sglang": ("torch", "transformers"),
    "torchaudio": ("torch",),
    "torchvision": ("torch",),
    "unsloth": ("accelerate", "datasets", "peft", "torch", "transformers", "trl"),
    "vllm": ("torch", "transformers"),
    "xformers": ("torch",),
}
"""The same of packages that projects often name beside ours. They allow few releases, or one:
without their requirements nobody knows which."""


def unknown_needs(
    names: Iterable[str], our_packages: Collection[str], versions: Collection[str], why: str
) -> dict[str, str]:
    """Our packages that ``names`` need, also indirectly, and that ``versions`` lacks, each with the
    reason: what needs it, and ``why`` that says nothing."""
    unknown: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for need in NEEDS_ONE_RELEASE.get(name) or NEEDS.get(name, ()):
            if need not in versions and need not in unknown:
                waiting.append(need)
                if need in our_packages:
                    unknown[need] = f"{name} needs it, and {name} {why}"
    return unknown
