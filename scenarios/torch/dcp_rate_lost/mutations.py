"""What else could be wrong after a checkpoint was loaded."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, left_out
from scenarios.common.mutation import guarded, mutation

LOADER = "torch/distributed/checkpoint/state_dict_loader.py"
FILES = "torch/distributed/checkpoint/filesystem.py"


@mutation(FILES, "FileSystemReader.read_data", "loads no tensor")
def tensors_kept(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(
    FILES, "FileSystemReader.read_data", "the bug, and no tensor is loaded either", variant="buggy"
)
def tensors_kept_too(function: Any) -> api.Edits:
    yield from left_out(calling(function, "copy_"))


@mutation(LOADER, "load", "gives back all but the optimizer's state", variant="copied")
def only_progress(function: Any) -> api.Edits:
    yield from guarded(_given_back(function), "key != 'optimizer'")


@mutation(LOADER, "load", "gives back all but the epoch", variant="copied")
def only_optimizer(function: Any) -> api.Edits:
    yield from guarded(_given_back(function), "key != 'progress'")


def _given_back(function: Any) -> Any:
    """The line in the ``else`` for objects that are not Stateful."""
    import libcst.matchers as m

    for node in m.findall(function, m.Else()):
        yield from m.findall(node, m.SimpleStatementLine([m.Assign()]))


MUTATIONS = (tensors_kept, tensors_kept_too, only_progress, only_optimizer)
