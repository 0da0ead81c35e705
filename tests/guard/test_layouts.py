"""What torch's own parallelism splits is compared: right trainings are silent, faults are told."""

from __future__ import annotations

import pytest

from tests.guard.test_trainings import COPIES, GRADIENTS, OUT, Fault, assert_told
from tests.guard.trainer import Trainer
from tests.guard.word_models import FAULT_STEP

pytestmark = [pytest.mark.launch, pytest.mark.slow]

ALL = 14
"""The parameters of the model."""

RIGHT = [
    ("fsdp2 columns", 2, ALL),
    ("fsdp2 columns mixed accumulate clip", 2, ALL),
    ("tensor_parallel", 2, ALL),
    ("tensor_parallel sequence_parallel", 2, ALL),
    ("tensor_parallel split_words", 2, ALL - 1),
    ("fsdp2_tensor_parallel", 4, ALL),
    ("fsdp2_tensor_parallel sequence_parallel mixed accumulate", 4, ALL),
    ("hsdp columns mixed", 4, ALL),
    ("fsdp1", 2, ALL),
    ("fsdp1 mixed accumulate", 2, ALL),
    ("fsdp1 flat", 2, 3),
    ("fsdp1 no_shard", 2, ALL),
    ("fsdp1 shard_grad_op", 2, ALL),
    ("fsdp1 hybrid_shard", 4, ALL),
    ("pipeline", 2, ALL),
    ("pipeline one_f_one_b", 4, ALL),
    ("pipeline interleaved", 2, ALL),
    ("pipeline sharded_stages", 4, ALL),
    ("fsdp2 sums_rightly", 2, ALL),
    ("by_hand sums_rightly", 2, ALL),
    ("ddp zero_redundancy", 2, ALL),
]


@pytest.mark.parametrize(
    ("training", "ranks", "parameters"),
    [pytest.param(*one, marks=pytest.mark.by_day(8), id=one[0]) for one in RIGHT],
)
def test_gradients_of_a_right_training_are_compared(
    under_guard: Trainer, training: str, ranks: int, parameters: int
) -> None:
    run = under_guard(training, ranks=ranks)

    assert run.alarms == []
    assert set(run.codes) == {0}
    assert run.summary["error"] == ""
    assert run.summary["compared"]["gradients"] == parameters
    assert len(run.summary["checked"]) > 5


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ("stages_by_hand", "ranks of a pipeline"),
        ("by_hand local_sgd", "replicas are not compared"),
        ("by_hand diloco", "replicas are not compared"),
        ("ddp post_local_sgd", "replicas are not compared"),
    ],
)
def test_stages_and_averages_of_the_loop_itself_are_not_seen(
    under_guard: Trainer, training: str, words: str
) -> None:
    run = under_guard(training)

    assert run.alarms == []
    assert run.summary["error"] == ""
    assert any(words in sentence for sentence in run.summary["not_seen"])


WRONG = [
    (Fault("fsdp2 columns never_reduced", "gradients", "none", [0, 1], OUT), 2),
    (Fault("fsdp2 summed", "gradients", "longer", [0, 1]), 2),
    (Fault("fsdp2 columns accumulate_reduced last_only", *GRADIENTS, [0, 1], OUT, 4), 2),
    (Fault("hsdp columns flipped", *COPIES, [1], OUT, FAULT_STEP), 2),
    (Fault("tensor_parallel sequence_parallel norms_alone", *GRADIENTS, [0, 1], also=(COPIES,)), 2),
    (Fault("fsdp1 never_cleared", "gradients", "stale", [0, 1], "", 2), 2),
    (Fault("fsdp1 no_shard flipped", *COPIES, [1], OUT, FAULT_STEP), 2),
    (Fault("fsdp1 hybrid_shard flipped", *COPIES, [3], OUT, FAULT_STEP), 4),
    # FSDP1 shards nothing among one rank, and forgets its copies (torch 2.15 still does).
    (Fault("fsdp1 hybrid_shard", *GRADIENTS, [0, 1], also=(COPIES,)), 2),
    (Fault("fsdp1 flat clip", "gradients", "norm", [0, 1]), 2),
    (Fault("fsdp2_tensor_parallel same_rows", "samples", "shared", [0, 1, 2, 3]), 4),
    (Fault("pipeline called_twice", *GRADIENTS, [0, 1]), 2),
    (Fault("pipeline one_f_one_b called_twice", *GRADIENTS, [0, 1]), 2),
    (Fault("pipeline never_reduced", *GRADIENTS, [0, 1, 2, 3], also=(COPIES,)), 4),
]


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [pytest.param(*one, marks=pytest.mark.by_day(8), id=one[0].training) for one in WRONG],
)
def test_fault_is_told_once(under_guard: Trainer, fault: Fault, ranks: int) -> None:
    assert_told(under_guard, fault, ranks=ranks)
