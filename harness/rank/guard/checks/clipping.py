"""Gradients are clipped by the norm that those of all ranks have together, and after a loss scaler
has divided them.

Ranks that have parts of a model must add up the squares of all parts. Otherwise a step is longer
than the limit, or the ranks shorten their parts by different factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..posting.posts import Alarm
from .views import Memory, View

NEAR = 2e-2
"""How far (as a fraction) a norm may be from the right one: bf16 rounds it by up to 0.4 %.
DeepSpeed's pipeline clips by 2.00 instead of 3.68 (``pipeline_clip_norm``)."""
TINY = 1e-6
"""What torch and DeepSpeed add to a norm before they divide by it."""
MOST = 100_000
"""Gradients, of all ranks, that are looked at: more take too long, as each is looked at alone.
1,024 ranks have as many with 98 parameters each."""

LARGE = 100.0
"""How many times its limit a loss scale is at least that the limit forgets. minGPT-ddp of
pytorch/examples clips to 1 before a scale of 65536, and 37 checks did not tell it."""
LEAST_SCALE = 1024.0
"""From this scale on, a limit of two digits times the scale has more than two: 25 times 256 is the
last product with two. The right loop ``gradients.limit_times_the_scale`` clips to 0.005 times
16384, and had an alarm."""

Piece = tuple[str, str, int, int]


def clipping(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Gradients are clipped by the norm that those of all ranks have together."""
    yield from _scaled(views)
    yield from _multiplied(views)
    looked = [view for view in views if "norms" in view.post.tensors]
    if len(looked) < len(views) or len(views) * len(views[0].numbers) > MOST:
        return  # some ranks have clipped otherwise
    squares, again = dict[Piece, float](), dict[Piece, float]()
    of_ranks = {view.rank: _squares(view) for view in views}
    for view in views:
        squares.update(of_ranks[view.rank])
        for number in view.numbers:
            described = view.described[number]
            piece = described.name, described.part, described.begin, described.end
            again[piece] = described.stages - 1.0
    memory.compared["clipping"] = len(squares)
    ranks, sizes = [], []
    for view in views:
        norm, limit = view.post.tensors["clipped"].tolist()
        own = of_ranks[view.rank]
        together = {**squares, **own}
        right_norm = math.sqrt(sum(together.values()))
        # Some count a weight that several stages share once for each of them.
        with_shared = math.sqrt(sum(square * (1 + again[p]) for p, square in together.items()))
        right_ones = [right_norm, with_shared]
        if all(described.end - described.begin == described.numel for described in view.described):
            right_ones.append(math.sqrt(sum(own.values())))  # a stage may have a limit of its own
        is_right = any(abs(norm - one) <= NEAR * one for one in right_ones)
        is_finite = math.isfinite(norm + right_norm)
        if right_norm and is_finite and not is_right and max(norm, right_norm) > limit:
            ranks.append(view.rank)
            sizes.append((norm, right_norm))
    if ranks:
        norm, right_norm = sizes[0]
        text = (
            f"the gradients are clipped by a norm of {norm:.4g}, and those of all ranks together "
            f"have one of {right_norm:.4g}"
        )
        yield Alarm("gradients", "norm", text, ranks, norm / right_norm)


def _multiplied(views: Sequence[View]) -> Iterator[Alarm]:
    """Clipping multiplies gradients by the limit divided by their norm, and by no more than 1."""
    faults = []
    for view in views:
        after = view.post.tensors.get("after")
        if after is None:
            continue
        before = float(view.post.tensors["norms"].double().norm())
        norm, limit = view.post.tensors["clipped"].tolist()
        if not (before and norm > 0 < limit and math.isfinite(before + norm)):
            continue
        factor, right_factor = (
            float(after.double().norm()) / before,
            min(1.0, limit / (norm + TINY)),
        )
        if abs(factor - right_factor) > NEAR * right_factor:
            faults.append((view.rank, norm, limit, factor, right_factor))
    if faults:
        _, norm, limit, factor, right_factor = faults[0]
        text = (
            f"clipping a norm of {norm:.4g} to {limit:.4g} multiplies the gradients by "
            f"{factor:.4g} instead of {right_factor:.4g}"
        )
        yield Alarm("gradients", "clip", text, [rank for rank, *_ in faults], factor)


def _scaled(views: Sequence[View]) -> Iterator[Alarm]:
    """Gradients are clipped after a loss scaler has divided them."""
    faults = []
    for view in views:
        if "scaled" in view.post.tensors:
            norm, limit, scale = view.post.tensors["scaled"].tolist()
            is_clipped = math.isfinite(norm) and norm > limit > 0
            # A number of two digits, as people write a limit, times a power of two from 1024 on
            # has more than two: then a loop may have multiplied its limit by the scale.
            is_written = abs(float(f"{limit:.1e}") - limit) <= 1e-6 * limit
            is_power = math.frexp(scale)[0] == 0.5 and scale >= LEAST_SCALE
            if is_clipped and scale >= LARGE * limit and is_written and is_power:
                faults.append((view.rank, limit, scale))
    if faults:
        _, limit, scale = faults[0]
        text = (
            f"the gradients are clipped to a norm of {limit:.4g} before the loss scaler divides "
            f"them by {scale:.6g}: the step uses a norm of {limit / scale:.2g} (unscale_ before it)"
        )
        yield Alarm("gradients", "scale", text, [rank for rank, *_ in faults], scale)


def _squares(view: View) -> dict[Piece, float]:
    """The square of the norm of each gradient that a rank has, or a part of it. Two models may
    have the same names."""
    squares = dict[Piece, float]()
    for number, norm in zip(view.numbers, view.post.tensors["norms"].tolist()):
        described = view.described[number]
        piece = described.name, described.part, described.begin, described.end
        squares[piece] = squares.get(piece, 0.0) + norm**2
    return squares
