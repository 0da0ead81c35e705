"""probe runs loops as the documentation of each package teaches them.

The bugs are those of upstream's releases; the tests add none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from harness.run.server_pool import Pool
from harness.training.probe.answers import Answers
from harness.training.probe.layouts import RANKS
from harness.training.probe.prober import Loop, Prober
from tests.overlays import lent, lent_packages, lent_release
from tests.probe.probing import first_broken, layout, require_right

pytestmark = [pytest.mark.launch, pytest.mark.slow]

Packages = Callable[[], AbstractContextManager[Path | None]]
"""Lends a site-packages, or None for the packages of this Python."""


@contextmanager
def of_variant(scenario: str, variant: str) -> Iterator[Path]:
    with lent(scenario, variant) as overlays:
        yield overlays[variant].site


@contextmanager
def of_release(release: str) -> Iterator[Path]:
    """The packages of a release of DeepSpeed."""
    with lent_release("tied_grad_reduce", release) as overlay:
        yield overlay.site


@contextmanager
def of_day(**pins: str) -> Iterator[Path]:
    with lent_packages("2026-11-20", **pins) as overlay:
        yield overlay.site


TORCH: Packages = nullcontext
TRAINER = partial(of_variant, "trainer_gas_twice", "fixed")
MEGATRON = partial(of_variant, "tied_embedding_training", "fixed")
LIGHTNING = partial(of_day, lightning="2.6.6")
TRL = partial(of_day, trl="1.16.0", transformers="5.23.0")

RIGHT: list[tuple[Loop, Packages]] = [
    (Loop("fsdp2.py"), TORCH),
    (Loop("fsdp2.py", "--bf16 --clip 0.5"), TORCH),
    (Loop("accelerated.py"), TRAINER),
    (Loop("trainer.py"), TRAINER),
    (Loop("tensor_parallel.py"), TORCH),
    (Loop("tensor_parallel.py", "--sequence --clip 0.5"), TORCH),
    (Loop("tensor_parallel.py", "--loss-parallel"), TORCH),
    (Loop("torch_pipeline.py", "--own-scale"), TORCH),
    (
        Loop(
            "torch_pipeline.py", "--own-scale --schedule InterleavedZeroBubble --stages 2 --shared"
        ),
        TORCH,
    ),
    (Loop("torch_pipeline_ddp.py"), TORCH),  # its stages have the same names on each replica
    (Loop("megatron_gpt.py"), MEGATRON),
    (Loop("megatron_gpt.py", "--stages 2 --tied"), MEGATRON),
    (Loop("megatron_gpt.py", "--recompute"), MEGATRON),
    (Loop("megatron_gpt.py", "--replicas 2 --sharded --clip 0.1"), MEGATRON),
    (Loop("lightning_module.py"), LIGHTNING),
    (Loop("lightning_module.py", "--optimizer sgd --clip 0.1 --precision bf16-mixed"), LIGHTNING),
    (Loop("fabric_ddp.py"), LIGHTNING),
    (Loop("fabric_ddp.py", "--training-step"), LIGHTNING),
    (Loop("sft.py"), TRL),
    *(
        (Loop("zero.py", more), partial(of_release, release))
        for more in ("--stage 0", "--stage 1 --bf16 --clip 0.1", "--stage 2", "--stage 3")
        for release in ("0.19.8", "0.18.9")
    ),
]


def probed(pool: Pool, loop: Loop, packages: Packages) -> Answers:
    with packages() as site:
        return Prober(pool, site)(loop)


@pytest.mark.by_day(8)
@pytest.mark.parametrize(("loop", "packages"), RIGHT, ids=[loop.name for loop, _ in RIGHT])
def test_a_right_loop_is_as_one_process_and_resumes(
    pool: Pool, loop: Loop, packages: Packages
) -> None:
    answers = probed(pool, loop, packages)
    require_right(answers)


def test_a_loss_of_an_evaluation_that_is_summed_over_the_ranks_is_found(pool: Pool) -> None:
    arguments = "--model bert-sequence --evaluate true --eval_strategy steps --eval_steps 2"
    answers = probed(pool, Loop("trainer.py", arguments, (RANKS,)), TRL)
    ratios = {fault.relation: fault.ratio for fault in layout(answers, RANKS).broken}
    assert ratios["evaluation"] == pytest.approx(2, rel=1e-3)


def test_a_backward_that_is_not_that_of_its_forward_is_noted(pool: Pool) -> None:
    bug = "--loss-parallel --bug 'log_softmax within loss_parallel'"
    answers = probed(pool, Loop("tensor_parallel.py", bug, (RANKS,)), TORCH)
    assert first_broken(answers) == {}
    assert any("a backward is not that of its forward" in note for note in answers.notes)
