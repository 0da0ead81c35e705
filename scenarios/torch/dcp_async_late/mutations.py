"""What else could be wrong with a checkpoint."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.common.mutation import mutation

FILES = "torch/distributed/checkpoint/filesystem.py"


@mutation(FILES, "FileSystemReader.read_data", "reads no tensor")
def not_read(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(FILES, "FileSystemReader.read_data", "the bug, and no tensor is read", variant="buggy")
def not_read_either(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation("torch/optim/sgd.py", "SGD.step", "the optimizer never steps")
def never_steps(function: Any) -> api.Edits:
    yield from left_out(calling(function, "sgd"))


MUTATIONS = (not_read, not_read_either, never_steps)
