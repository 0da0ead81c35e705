"""get_optimizer_state_dict before the first step makes Adam's first updates too small.

By its name, ``get_optimizer_state_dict`` of torch.distributed.checkpoint only reads a state. But if
the optimizer has none yet, it takes an empty step to make one. So Adam's count is 1 before the
training has begun, and 6 after 5 steps. Adam corrects its moments by a factor that depends on the
count: the first update is 0.744 times the right one. This hits trainings that ask for the state at
the start, for example to save a first checkpoint. The loss falls, and all ranks agree.

Root cause: ``_init_optim_state`` sets all gradients to zero and all rates to 0, and calls the
optimizer's ``step``. That leaves the weights and moments as they are, but not the count.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed
from scenarios.deepspeed import _stepped_at_init as init

TOLERANCE = 1e-3
"""How far weights may be from plain torch's, in learning rates: Adam's step is about one."""


def counts_reset(function: Any) -> api.Edits:
    """After the empty step, each count of steps is 0 again."""
    counts = "[state['step'] for state in optim.state.values() if 'step' in state]"
    yield from followed(calling(function, "step"), f"for count in {counts}: count.zero_()")


def ahead(step: api.Record) -> bool:
    """Adam's count is one ahead, and the weights are those of an Adam that took an empty step."""
    return init.ahead(step, TOLERANCE)


oracle = init.Ahead(ahead, TOLERANCE)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Adam under DDP; plain torch trains two copies, one a step ahead."""
    from functools import partial

    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    from torch.nn.parallel import DistributedDataParallel

    from scenarios.common import linear
    from scenarios.deepspeed import _adamw_reference as reference

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    module = linear.model().to(ctx.device)
    make = partial(torch.optim.Adam, lr=p.lr)
    beside = reference.Beside(module, make)
    model = DistributedDataParallel(module)
    optimizer = make(model.parameters())
    data = linear.batches(ctx, module, p.rows, distance=5.0, noise=0.1)
    for step, rows in zip(api.each(p.steps), data, strict=False):
        if (p.asked, step) in {("before", 1), ("after", 2)}:
            get_optimizer_state_dict(model, optimizer)
        beside.step(rows)
        inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in rows)
        optimizer.zero_grad()
        loss = linear.loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
        weights = dict(module.named_parameters())
        facts = beside.facts(optimizer, weights, p.lr)
        ctx.record("step", step, loss=float(loss.detach()), **facts)
