"""What lhotse needs beside a newer torch."""

from __future__ import annotations

from collections.abc import Callable

from harness.api.spec import Lane, Point
from harness.overlays.shims import stand_ins


def _sampler_argument(count: Callable[[], None]) -> None:
    """Let torch's Sampler take an argument, from lhotse's code, as it did."""
    from torch.utils.data import Sampler

    stand_ins.replace_for("lhotse", Sampler, "__init__", count, lambda *_, **__: None)


POINTS = (
    Point(
        "lhotse.sampler_argument",
        "lhotse",
        "<1.32.2",
        (Lane.CPU, Lane.GPU),
        "it makes torch's Sampler with an argument that was never used, and that newer releases "
        "of torch refuse",
        _sampler_argument,
    ),
)
