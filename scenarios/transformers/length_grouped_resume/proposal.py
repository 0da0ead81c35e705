"""What report.md proposes, as an edit of the sampler. It is enough for one rank."""

from __future__ import annotations

from typing import Any

from harness.bugs import api

DRAWN = """
def __iter__(self):
    generator = torch.Generator()
    generator.manual_seed(torch.initial_seed() + getattr(self, "epoch", 0))
    return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))
"""
COUNTED = """
def set_epoch(self, epoch):
    self.epoch = epoch
"""


def with_epochs(sampler: Any) -> api.Edits:
    """The sampler has ``set_epoch``, and its order depends on the seed and the epoch alone."""
    import libcst as cst

    members = [
        part
        for part in sampler.body.body
        if getattr(part, "name", None) is None or part.name.value != "__iter__"
    ]
    added = [cst.parse_statement(code) for code in (DRAWN, COUNTED)]
    yield sampler.body, sampler.body.with_changes(body=[*members, *added])
