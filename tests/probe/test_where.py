"""A BROKEN layout has a place: the module, or the stage, in which it parts from the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from harness.rank.probe.recording.places import digest
from harness.training.probe.compare.faults import Stage
from harness.training.probe.layouts import ACCUMULATION, RANKS, Settings
from tests.probe.probing import GIVEN, Probing, with_bug
from tests.slow import slow

pytestmark = pytest.mark.launch

SHORT = Settings(steps=2, at=1, where=True)


@pytest.mark.parametrize(
    ("bug", "options", "kind", "expected"),
    [
        ("no all-reduce", "", RANKS, Stage.REDUCTION),
        *slow(
            ("zero_grad in each micro-batch", "", ACCUMULATION, Stage.ACCUMULATION),
            ("summed over ranks", "", RANKS, Stage.LOSS),
            ("never divided by k", "--clip 0.1", ACCUMULATION, Stage.LOSS),
            ("clips each micro-batch", "--clip 0.1", ACCUMULATION, Stage.CLIPPING),
            ("schedule by micro-batch", "", ACCUMULATION, Stage.SCHEDULE),
            ("no sampler", "", RANKS, Stage.LOADER),
            ("shrinks on several ranks", "", RANKS, Stage.WEIGHTS),
        ),
    ],
)
def test_a_mistake_is_placed_in_its_stage(
    probing: Probing, bug: str, options: str, kind: str, expected: str
) -> None:
    settings = replace(SHORT, layouts=(kind,))
    place = probing("ddp.py", with_bug(bug, options), settings).where
    assert place is not None
    assert place.stage == expected


@pytest.mark.slow
def test_a_right_loop_has_no_place(probing: Probing) -> None:
    assert probing("ddp.py", GIVEN, SHORT).where is None


FAULTY = Path(__file__).with_name("faulty") / "transformer.py"

FAULTS = {
    "heads swapped": (Stage.FORWARD, "layers.1.attn"),
    "mask off by one": (Stage.FORWARD, "layers.0.attn"),
    "scale by the batch": (Stage.FORWARD, "layers.1.attn"),
    "softmax over the wrong dimension": (Stage.FORWARD, "layers.0.attn"),
    "norm sums a row": (Stage.BACKWARD, "layers.0.norm2"),
    "custom backward": (Stage.BACKWARD, "layers.1.mlp"),
    "low precision": (Stage.FORWARD, "layers.0.mlp"),
    "recomputed otherwise": (Stage.FORWARD, "layers.1.mlp"),
    "dropout is not shared": (Stage.FORWARD, "layers.0.noise"),
    "centres the batch": (Stage.FORWARD, "centre"),
    "residual scale": (Stage.FORWARD, "layers.1"),
    "residual is detached": (Stage.BACKWARD, "layers.0"),
    "bias twice": (Stage.FORWARD, "head"),
    "positions are shifted": (Stage.FORWARD, ""),
    "gradient is scaled by a hook": (Stage.BACKWARD, ""),
    "a token counts too much": (Stage.LOSS, ""),
    "loss is summed": (Stage.LOSS, ""),
    "auxiliary loss counts twice": (Stage.LOSS, ""),
    "loss halves all but a scale": (Stage.LOSS, ""),
}
"""By the fault, its stage and its module."""


IN_BF16 = ("heads swapped", "custom backward", "loss is summed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "dtype"),
    [
        *((fault, RANKS, "float32") for fault in FAULTS),
        *((fault, ACCUMULATION, "bfloat16") for fault in IN_BF16),
    ],
)
def test_a_fault_of_a_module_has_its_place(
    probing: Probing, fault: str, kind: str, dtype: str
) -> None:
    words = [*GIVEN.split(), "--dtype", dtype, "--fault", fault]
    place = probing(str(FAULTY), words, replace(SHORT, layouts=(kind,))).where
    assert place is not None
    assert (place.stage, place.module or "") == FAULTS[fault], place.sentence


def test_a_mask_with_infinities_is_as_itself_and_unlike_another() -> None:
    """A causal mask of CLIP is minus infinity where no token may look."""
    mask = torch.full((5, 5), float("-inf")).triu(1)
    values = digest(mask, 2)["values"].numpy()
    assert numpy.isfinite(values).all()
    assert not numpy.allclose(values, digest(mask.tril(1).triu(2), 2)["values"].numpy())
    assert not numpy.isfinite(digest(mask * float("nan"), 2)["values"].numpy()).any()
