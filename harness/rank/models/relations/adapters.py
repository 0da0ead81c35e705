"""Relations for a model with a peft adapter."""

from __future__ import annotations

from harness.rank.models.answer import Wrong
from harness.rank.models.subject import Subject, gradients, logits, loss_of, run, seed
from harness.system.text import count

ADAPTER = "lora_"


def lora(subject: Subject) -> str | None:
    """Only the adapter gets gradients, and merging it into the weights changes no logits."""
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]

    seed()
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    module = get_peft_model(subject.copy(), config).eval()
    loss_of(run(module, subject.loss_inputs())).backward()
    by_name = gradients(module)
    others = [name for name in by_name if ADAPTER not in name]
    if others:
        raise Wrong(f"{others[0]} gets a gradient, and is no part of the adapter")
    apart = logits(module, subject.batch)
    merged = logits(module.merge_and_unload(), subject.batch)
    subject.require_equal(merged, apart, "after the adapter is merged")
    return f"{count(len(by_name), 'parameter')} in the adapter"
