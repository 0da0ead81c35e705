"""The digest of a tensor of a module."""

from __future__ import annotations

import numpy
import torch

from harness.rank.probe.recording.places import digest


def test_a_mask_with_infinities_is_as_itself_and_unlike_another() -> None:
    """A causal mask of CLIP is minus infinity where no token may look."""
    mask = torch.full((5, 5), float("-inf")).triu(1)
    values = digest(mask, 2)["values"].numpy()
    assert numpy.isfinite(values).all()
    assert not numpy.allclose(values, digest(mask.tril(1).triu(2), 2)["values"].numpy())
    assert not numpy.isfinite(digest(mask * float("nan"), 2)["values"].numpy()).any()
