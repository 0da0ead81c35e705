"""Modules that DeepSpeed's pipeline has on several stages."""

from __future__ import annotations

import torch
from torch import nn

from harness.rank.guard.deepspeed_stages import TiedStages
from harness.rank.guard.parameters import Modules, watched


class Stage(nn.Module):
    """As DeepSpeed's PipelineModule: an embedding with a norm, whose weight is on another stage."""

    def __init__(self) -> None:
        super().__init__()
        embed = nn.Module()
        embed.words, embed.norm = nn.Embedding(8, 4), nn.LayerNorm(4)
        self.tied_modules = nn.ModuleDict({"embed": embed})
        self.out = nn.Linear(4, 4)
        self.tied_comms = {"embed": {"module": embed, "weight_attr": ["words.weight"]}}


def test_only_the_tied_weight_has_copies_and_its_gradients_are_not_compared() -> None:
    stage = Stage()
    optimizer = torch.optim.SGD(stage.parameters(), 0.1)
    modules = Modules()
    modules.layouts = [TiedStages(modules)]

    own_parameters = set(stage.parameters())  # models of other tests may be in this process
    entries = [
        entry for entry in watched(optimizer, modules, set()) if entry.parameter in own_parameters
    ]
    by_name = {entry.described.name: entry for entry in entries}

    copies = {name for name, entry in by_name.items() if entry.share.is_copy}
    assert copies == {"tied_modules.embed.words.weight"}
    compared = {name for name, entry in by_name.items() if entry.hooked is not None}
    assert compared == {"out.weight", "out.bias"}
    assert "of rank" in by_name["tied_modules.embed.norm.weight"].described.copy
    assert "of rank" not in by_name["tied_modules.embed.words.weight"].described.copy
