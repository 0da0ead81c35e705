"""PEFT's layers_to_transform takes an expert's number for that of its layer: other layers train.

This affects users who put LoRA on some layers of a mixture of experts whose experts are modules of
their own, as in Qwen2-MoE before transformers 5. With ``layers_to_transform=[1]``, expert 1 of
every layer gets an adapter, and the other experts of layer 1 get none. Attention is right. The
number of trainable parameters may be the expected one, no message appears, and the loss falls.

Root cause: PEFT finds the number of the layer with a regular expression that begins with a greedy
``.*``, so it finds the last number in the name: in ``model.layers.2.mlp.experts.1.up_proj`` that of
the expert. The fix takes the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from harness.bugs import api

LAYERS, CHOSEN = 3, 1
"""The layers of the model, and the one that shall have adapters."""


def plan(at: api.Position) -> api.Plan:
    """Which adapters of each layer moved in a step: of attention, and of each expert."""
    experts = api.many(api.FLAG, at.params.experts)
    return {"layer": api.Kind({"attention": api.FLAG, "experts": experts}, range(LAYERS))}


def run(ctx: api.Context) -> None:
    """Take a step with adapters on one layer; record which of them moved."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(ctx.seed)
    config = LoraConfig(target_modules=["q_proj", "up_proj"], layers_to_transform=[CHOSEN])
    model = get_peft_model(_model(ctx.params.experts), config).to(ctx.device)
    adapters = {n: p for n, p in model.named_parameters() if "lora_B" in n}  # 0 before the step
    model(torch.ones(1, 4, device=ctx.device)).sum().backward()
    torch.optim.SGD(adapters.values(), lr=1.0).step()
    moved = {name.partition(".lora_B")[0] for name, weight in adapters.items() if weight.any()}
    for layer in range(LAYERS):
        has = {name.partition(f"layers.{layer}.")[2] for name in moved}
        experts = [f"mlp.experts.{n}.up_proj" in has for n in range(ctx.params.experts)]
        ctx.record("layer", layer, attention="self_attn.q_proj" in has, experts=experts)


def _model(experts: int) -> Any:
    """A model whose modules have the names of Qwen2-MoE's; each adds its output."""
    from torch import nn

    class Tree(nn.ModuleDict):
        def forward(self, x: Any) -> Any:
            for part in self.values():
                for module in part if isinstance(part, nn.ModuleList) else [part]:
                    x = x + module(x)
            return x

    def linear(name: str) -> Tree:
        return Tree({name: nn.Linear(4, 4)})

    def layer() -> Tree:
        mlp = Tree({"experts": nn.ModuleList(linear("up_proj") for _ in range(experts))})
        return Tree({"self_attn": linear("q_proj"), "mlp": mlp})

    return Tree({"model": Tree({"layers": nn.ModuleList(layer() for _ in range(LAYERS))})})


def detect(records: api.Records) -> api.Finding | None:
    """In each layer, the expert with the number of the chosen layer trained, and no other one.
    Attention trained in the chosen layer alone."""
    layers = records.of("layer")

    def unlike(expected: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        return [
            (one["step"], expert)
            for one in layers
            for expert, trained in enumerate(one["experts"])
            if trained != expected(one["step"], expert)
        ]

    attention = all(one["attention"] == (one["step"] == CHOSEN) for one in layers)
    faults = unlike(lambda layer, _: layer == CHOSEN)
    if attention and not faults:
        return None
    names = ", ".join(f"{layer}.{expert}" for layer, expert in faults)
    return api.Finding(
        f"layer {CHOSEN} shall train; the experts {names} (layer.expert) did the opposite",
        magnitude=len(faults) / max(sum(len(one["experts"]) for one in layers), 1),
        unit="of the experts",
        documented=attention and not unlike(lambda _, expert: expert == CHOSEN),
    )


def _trained(records: api.Records) -> Iterator[tuple[int, int, str]]:
    for one in records.of("layer", 0):
        for expert, trained in enumerate(one["experts"]):
            chosen = trained == (one["step"] == CHOSEN)
            yield (
                expert,
                one["step"],
                f"{'' if chosen else 'wrongly '}{'trained' if trained else 'not'}",
            )


picture = api.grid(
    "Which experts train if layer 1 is chosen",
    "with the bug, expert 1 of each layer trains",
    _trained,
    x="expert",
    y="layer",
    value="is",
    wrong=("wrongly trained", "wrongly not"),
)
