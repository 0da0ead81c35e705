"""A module that is moved or cast after it was wrapped in DDP averages no gradients any more.

``DistributedDataParallel`` gives no error if its parameters change their type or device afterwards:
by ``.bfloat16()``, by ``.cpu()`` and ``.cuda()`` to make room on a GPU for something else, or by
``.to_empty()``. But from then on each rank applies only its own gradient, also if the change is
undone. The ranks' weights drift apart, and the loss of each falls as it should. The checkpoint of
rank 0 has seen the data of rank 0 alone.

Root cause: DDP puts a hook on the node of autograd that accumulates a parameter's gradient. If a
parameter gets data of another type or device, autograd makes a new node for it. Nobody calls DDP's
hooks on the old ones.

torch 2.13.0 has the bug: as released, it is the buggy variant. The fixed variant is our remedy: DDP
makes its hooks anew after each such change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import unreduced

if TYPE_CHECKING:
    from torch import Tensor


HOOKS_ANEW = """
def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
    super()._apply(fn, recurse)
    if not any(parameter.is_meta for parameter in self.parameters()):
        parameters, sparse = self._build_params_for_reducer()
        names = self._build_debug_param_to_name_mapping(parameters)
        self._ddp_init_helper(parameters, sparse, names, self.static_graph)
    return self
"""


def hooks_anew(tree: Any) -> api.Edits:
    """After each change of its parameters, the module makes its reducer and hooks anew."""
    import libcst as cst

    method = cst.parse_statement(HOOKS_ANEW)
    yield tree.body, tree.body.with_changes(body=[*tree.body.body, method])


def changed(at: api.Position) -> api.Plan:
    """Whether autograd has new nodes for the parameters that DDP had hooked."""
    return {"change": api.Kind({"renewed": api.alike(api.FLAG)})}


oracle = unreduced.Unreduced(unreduced.Step, unreduced.own_alone, also=changed)


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP, after a change of its parameters."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scenarios.common import linear, plain_torch

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    plain = linear.model().to(ctx.device)
    inner = copy.deepcopy(plain)
    if p.change == "before":
        inner.double().float()
    module = DistributedDataParallel(inner)
    nodes = _accumulators(module)
    if p.change == "double_and_back":
        module.double()
        module.float()
    elif p.change == "emptied":
        weights = {name: weight.clone() for name, weight in module.state_dict().items()}
        module.to("meta")
        module.to_empty(device=ctx.device)
        module.load_state_dict(weights)
    else:
        module.to(ctx.device)
    renewed = any(one is not other for one, other in zip(nodes, _accumulators(module), strict=True))
    ctx.record("change", renewed=renewed)

    def whole() -> dict[str, Tensor]:
        return plain_torch.copied(module.module)

    unreduced.train(ctx, plain, module, torch.optim.SGD(module.parameters(), lr=p.lr), whole)


def _accumulators(module: Any) -> list[Any]:
    """Autograd's nodes that accumulate the gradients of the parameters."""
    return [p.expand_as(p).grad_fn.next_functions[0][0] for p in module.parameters()]


def exercised(records: api.Records) -> api.Exercise:
    """Autograd had new nodes for the parameters, and the ranks' gradients differed."""
    renewed = records.of("change", 0)[0]["renewed"]
    text = f"autograd has {'new' if renewed else 'the same'} nodes for the parameters"
    return api.Exercise.of(renewed, text) & unreduced.parted(records)
