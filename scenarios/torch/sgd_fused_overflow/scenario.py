"""If the first step of a fused SGD is skipped, its momentum is memory that was never initialised.

``SGD(momentum=..., fused=True)`` and a ``GradScaler`` are the usual fast loop in fp16. The first
scale, 65536, is meant to be too large: gradients overflow, steps are skipped, and the scale is
halved until they fit. After the first skipped step the momentum holds whatever was in the memory,
and the first step that is taken adds it to the weights: often the training is NaN or infinite from
then on, and sometimes it goes on from weights that nobody chose. Without ``fused``, or with Adam,
nothing of this happens.

Root cause: at its first step ``_fused_sgd`` allocates the momentum without a value, and tells the
kernel to write the gradients there. If the gradients have overflowed, the kernel writes nothing.
But ``step`` keeps the momentum, and so the next step is no longer the first one.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def with_zeros(function: Any) -> api.Edits:
    """The momentum begins with zeros."""
    import libcst as cst
    import libcst.matchers as m

    for name in m.findall(function, m.Name("empty_like")):
        yield name, cst.Name("zeros_like")


def plan(at: api.Position) -> api.Plan:
    """Of each step: whether the gradients overflowed; how many numbers of the momentum are memory
    that nobody initialised; and how far the weights are from those of an SGD that is not fused, and
    that got the same gradients."""
    facts = {
        "loss": api.MAY_OVERFLOW,
        "overflow": api.alike(api.FLAG),
        "numbers": api.alike(api.COUNT),
        "uninitialised": api.alike(api.COUNT),
        "distance": api.MAY_OVERFLOW,
    }
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Fit a linear map in fp16 under DDP and GradScaler; an SGD that is not fused trains a copy.

    Torch fills memory that nobody initialises with NaN, so that runs are alike.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scenarios.common import linear

    p, device = ctx.params, ctx.device.type
    dist.init_process_group(ctx.lane.backend)
    module = linear.model().to(ctx.device)
    model = DistributedDataParallel(module)
    weights = list(module.parameters())
    options = {"lr": p.lr, "momentum": p.momentum}
    optimizer = torch.optim.SGD(weights, fused=p.fused, **options)
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    plain = torch.optim.SGD(copies, **options)
    scaler = torch.amp.GradScaler(device, init_scale=p.scale, growth_interval=p.growth)
    data = linear.batches(ctx, module, p.rows, distance=5.0, noise=0.1)
    for step, rows in zip(api.each(p.steps), data, strict=False):
        inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in rows)
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            outputs = model(inputs)
        loss = linear.loss(outputs.float(), labels)
        scaler.scale(loss).backward()
        gradients = [_gradient(weight) / scaler.get_scale() for weight in weights]
        overflow = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        torch.use_deterministic_algorithms(True)
        scaler.step(optimizer)
        torch.use_deterministic_algorithms(False)
        scaler.update()
        if not overflow:
            for copy, gradient in zip(copies, gradients, strict=True):
                copy.grad = gradient
            plain.step()
        buffers = [s["momentum_buffer"] for s in optimizer.state.values() if s]
        pairs = zip(weights, copies, strict=True)
        ctx.record(
            "step",
            step,
            loss=api.named(float(loss.detach())),
            overflow=overflow,
            numbers=sum(weight.numel() for weight in weights),
            uninitialised=sum(int(buffer.isnan().sum()) for buffer in buffers),
            distance=api.named(max(float((a - b).detach().abs().max()) for a, b in pairs)),
        )


def _gradient(weight: Any) -> Any:
    """A copy of a weight's gradient, as long as it is multiplied by the scale."""
    return weight.grad.clone()


def _is_wrong(step: api.Record) -> bool:
    return step["uninitialised"] > 0 or not api.near(step["distance"], 0.0, within=1e-5)


def detect(records: api.Records) -> api.Finding | None:
    """From the first step on, which is skipped, the whole momentum is memory that nobody
    initialised. The weights are right until a step is taken, and NaN afterwards."""
    steps = records.of("step")
    wrong_steps = [step for step in steps if _is_wrong(step)]
    if not wrong_steps:
        return None
    first_taken = min(
        (s["step"] for s in steps if not s["overflow"]), default=records.params.steps + 1
    )
    right_before = all(s["distance"] == 0 for s in steps if s["step"] < first_taken)
    after = [s for s in steps if s["step"] >= first_taken]
    return api.Finding(
        f"{steps[0]['uninitialised']} of {steps[0]['numbers']} numbers of the momentum are memory "
        f"that was never initialised after step 1, which was skipped: the first step that was "
        f"taken, {first_taken}, adds them to the weights",
        step=wrong_steps[0]["step"],
        ranks=records.ranks,
        magnitude=steps[0]["uninitialised"] / steps[0]["numbers"],
        unit="of the momentum",
        documented=all(s["uninitialised"] == s["numbers"] for s in steps)
        and right_before
        and all(s["distance"] == "nan" for s in after),
    )


def exercised(records: api.Records) -> api.Exercise:
    """SGD was fused, and its first step was skipped."""
    step, fused = records.of("step", 0)[0], records.params.fused
    text = f"fused was {fused}; the first step was {'skipped' if step['overflow'] else 'taken'}"
    return api.Exercise.of(fused and step["overflow"], text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Whoever looks at the skipped step itself finds the weights as they were."""
    step = records.of("step", 0)[0]
    has_moved = step["overflow"] and step["distance"] != 0
    return {"a skipped step changes the weights": has_moved}


picture = api.lines(
    "Numbers of the momentum that nobody initialised",
    "without the bug there is none, also if the first steps are skipped",
    lambda step: float(step["uninitialised"]),
    y="numbers",
)
