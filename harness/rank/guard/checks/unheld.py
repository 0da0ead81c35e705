"""What gets gradients is in an optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..posting.posts import Alarm
from .views import Memory, View, named


def unheld(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """What gets gradients is in an optimizer: not so if that holds tensors of no module."""
    for view in views:
        post = view.post
        is_late = post.check >= 3 and "bits" in post.tensors
        if view.first_bits is None or not is_late or not post.gradients.unheld:
            continue
        still = [
            described.name
            for number in view.numbers
            for described in [view.described[number]]
            if not described.optimized
            and described.trained
            and int(view.first_bits[number]) == view.bits(number)
            # An earlier model may have kept its gradients.
            and (post.gradients.foreign or str(number) in post.gradients.computed)
        ]
        if still and not post.gradients.foreign:  # a loop may freeze them so
            verb = "gets" if len(still) == 1 else "get"
            memory.not_seen["unheld"] = (
                f"whether it is meant that {named(still)} {verb} gradients and no optimizer has "
                f"{'it' if len(still) == 1 else 'them'}"
            )
        elif still:
            s = "s" if len(still) == 1 else ""
            text = (
                f"{named(still)} get{s} gradients but never move{s}: the optimizer holds "
                f"{post.gradients.foreign} tensors that belong to no module and have no gradient"
            )
            yield Alarm("updates", "unheld", text, [view.rank], float(len(still)), still)
