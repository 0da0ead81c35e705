"""What else could be wrong with clipping in BF16_Optimizer."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from tests.mutations import mutation

OPTIMIZER = "deepspeed/runtime/bf16_optimizer.py"
UTILS = "deepspeed/runtime/utils.py"


@mutation("clip_turned_round", UTILS, "clip_tensors_by_global_norm",
          "clips by the reciprocal of the factor: large gradients grow")  # fmt: skip
def turned_round(function: Any) -> Edits:
    import libcst.matchers as m

    quotient = m.BinaryOperation(operator=m.Divide())
    node: Any
    for node in m.findall(function, quotient):
        yield node, node.with_changes(left=node.right, right=node.left)


MUTATIONS = (turned_round,)
