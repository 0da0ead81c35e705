"""The ranks and stages of DeepSpeed's engines, and modules that its pipeline has on several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.deepspeed_stages import Engines
from harness.rank.guard.judge import judge
from harness.rank.guard.parameters import Modules, Watched, watched
from harness.rank.guard.posts import Post
from tests.guard.made_posts import SIZES, made_posts


class Stage(nn.Module):
    """As DeepSpeed's PipelineModule: an embedding with a norm, whose weight is on another stage."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__()
        embed = nn.Module()
        embed.words, embed.norm = nn.Embedding(8, 4), nn.LayerNorm(4)
        self.tied_modules = nn.ModuleDict({"embed": embed})
        self.out = nn.Linear(4, 4)
        tie = {"module": embed, "weight_attr": ["words.weight"], "ranks": ranks}
        self.tied_comms = {"embed": tie}


class DeepSpeedEngine(nn.Module):
    """A pipeline's engine on one of its stages."""

    def __init__(self, module: nn.Module, stages: int = 2) -> None:
        super().__init__()
        self.module, self.stage_id, self.num_stages = module, 0, stages
        self.data_parallel_group: Any = dist.group.WORLD


@pytest.fixture
def group() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def entries(engine: nn.Module) -> dict[str, Watched]:
    optimizer = torch.optim.SGD(engine.parameters(), 0.1)
    modules = Modules()
    modules.layouts = [Engines(modules)]
    parameters = set(engine.parameters())  # models of other tests may be in this process
    return {
        entry.described.name: entry
        for entry in watched(optimizer, modules, set())
        if entry.parameter in parameters
    }


WORDS, NORM = "tied_modules.embed.words.weight", "tied_modules.embed.norm.weight"


@pytest.mark.usefixtures("group")
def test_stages_share_the_tied_weight_alone() -> None:
    by_name = entries(DeepSpeedEngine(Stage([0, 2])))

    words = by_name[WORDS].described
    assert (words.ranks, words.part, words.stages, words.same_rows) == ([0, 2], "tied", 2, True)
    for name in (NORM, "out.weight"):
        described = by_name[name].described
        assert (described.ranks, described.part) == ([0], "pipeline stage 0")
        assert described.stages == 1
        assert described.copy != words.copy
    assert all(entry.hooked is not None for entry in by_name.values())


@pytest.mark.usefixtures("group")
def test_engine_without_a_pipeline_tells_its_ranks() -> None:
    model = nn.Linear(3, 2)
    engine = DeepSpeedEngine(model, stages=1)
    described = entries(engine)["weight"].described
    assert (described.ranks, described.part) == ([0], "")


@pytest.mark.usefixtures("group")
def test_engine_of_another_release_is_watched_without_ranks() -> None:
    engine = DeepSpeedEngine(Stage([0, 2]))
    del engine.stage_id
    assert entries(engine)["out.weight"].described.ranks == []


def of_gradients(times: float) -> list[tuple[str, str]]:
    """What is said of two stages that share the first weight, if they use so many times the mean
    of its gradients."""

    def change(post: Post) -> None:
        post.partial = {"0": 2}
        post.tensors["used"][: SIZES[0]] *= times

    alarms = judge(made_posts({0: change, 1: change}), Memory())
    return [(one.check, one.kind) for one in alarms if one.check == "gradients"]


def test_stages_that_share_a_weight_use_the_sum_of_its_gradients() -> None:
    assert of_gradients(2.0) == []
    assert of_gradients(1.0) == [("gradients", "mean")]
