"""At ZeRO stage 1, the weights that zero_to_fp32.py exports lack all frozen parameters.

This affects users who fine-tune a part of a model with DeepSpeed at stage 1, and make a plain file
of weights from the checkpoint with ``zero_to_fp32.py``, the usual way, or call the functions of it.
The script ends without an error, and the file has the trained parameters only. Who loads it with
``strict=False``, as for an adapter, goes on with frozen layers as they are initialised. The
checkpoint itself has them, and at stages 2 and 3 the file has them, too.

Root cause: the script reads frozen parameters from a list of their own in the checkpoint. The
engine writes this list if gradients are partitioned, which they are at stages 2 and 3 only.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def at_each_stage(function: Any) -> api.Edits:
    """The list of frozen parameters is written at each stage of ZeRO."""
    import libcst as cst
    import libcst.matchers as m

    for line in m.findall(function, m.Assign([m.AssignTarget(m.Name("save_frozen_param"))])):
        for name in m.findall(line, m.Name("zero_optimization_partition_gradients")):
            yield name, cst.Name("zero_optimization")


def plan(at: api.Position) -> api.Plan:
    """The names of the model's parameters, of those that are frozen, that the checkpoint has, that
    the file has, and of which the file has other values; and the losses of the training."""
    names = ("model", "frozen", "checkpoint", "file", "differing")
    return {
        "step": api.Kind({"loss": api.NUMBER}, api.each(at.params.steps)),
        "export": api.Kind(dict.fromkeys(names, api.many(api.LINE))),
    }


def run(ctx: api.Context) -> None:
    """Train with a frozen layer, save, and export the weights, as zero_to_fp32.py does."""
    import deepspeed
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from torch import nn

    from scenarios.common import linear
    from scenarios.deepspeed import _regression as regression

    p, folder = ctx.params, ctx.folder / "checkpoint"
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(linear.FEATURES, 8), nn.Linear(8, linear.OUTPUTS))
    model[0].requires_grad_(not p.frozen)
    engine = regression.engine(
        ctx,
        lambda _: torch.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=p.lr),
        model,
        train_micro_batch_size_per_gpu=4,
        zero_optimization={"stage": p.stage},
        zero_allow_untested_optimizer=True,
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    for number in api.each(p.steps):
        inputs = torch.randn(4, linear.FEATURES, generator=generator).to(ctx.device)
        labels = torch.randn(4, linear.OUTPUTS, generator=generator).to(ctx.device)
        ctx.record("step", number, loss=regression.step(ctx, engine, (inputs, labels)))
    engine.save_checkpoint(str(folder), tag="saved")
    parts = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parts, enabled=hasattr(parts[0], "ds_id")):
        weights = {n: w.detach().cpu().clone() for n, w in engine.module.named_parameters()}
    file = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag="saved")
    saved = torch.load(folder / "saved" / _states(p.stage), weights_only=False)["module"]
    ctx.record(
        "export",
        model=sorted(weights),
        frozen=[name for name, weight in model.named_parameters() if not weight.requires_grad],
        checkpoint=sorted(saved),
        file=sorted(file),
        differing=[n for n in sorted(file) if n in weights and not file[n].equal(weights[n])],
    )


def _states(stage: int) -> str:
    prefix = "zero_pp_rank_0_" if stage == 3 else ""
    return f"{prefix}mp_rank_00_model_states.pt"


def detect(records: api.Records) -> api.Finding | None:
    """The file lacks the frozen parameters, which the checkpoint has. It has all others, with the
    values of the model."""
    (export,) = records.of("export")
    missing = [name for name in export["model"] if name not in export["file"]]
    if not missing and not export["differing"]:
        return None
    return api.Finding(
        f"the exported file lacks {', '.join(missing)}: {len(missing)} of {len(export['model'])} "
        "parameters; the checkpoint has them",
        step=records.params.steps,
        ranks=records.ranks,
        magnitude=len(missing) / len(export["model"]),
        unit="of the parameters are not in the file",
        documented=sorted(missing) == sorted(export["frozen"])
        and not export["differing"]
        and {*missing} <= {*export["checkpoint"]},
    )


def exercised(records: api.Records) -> api.Exercise:
    """Parameters were frozen, at ZeRO stage 1."""
    stage, frozen = records.params.stage, records.of("export")[0]["frozen"]
    return api.Exercise.of(
        stage == 1 and len(frozen) > 0, f"{len(frozen)} parameters were frozen, at stage {stage}"
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The checkpoint is complete, and the file has the right values of what it has."""
    (export,) = records.of("export")
    return {
        "a parameter is missing in the checkpoint": export["checkpoint"] != export["model"],
        "an exported value is wrong": bool(export["differing"]),
    }


picture = api.bars(
    "Parameters of the exported file",
    "with the bug those of the frozen layer are missing",
    lambda records: [
        (name, float(name in records.of("export")[0]["file"]))
        for name in records.of("export")[0]["model"]
    ],
    "in the file",
)
