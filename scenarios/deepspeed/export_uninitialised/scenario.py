"""zero_to_fp32.py of DeepSpeed 0.16.0 writes memory that was never initialised instead of weights.

``zero_to_fp32.py``, which DeepSpeed puts into each ZeRO checkpoint, is the usual way to make a
plain file of weights from it. In 0.16.0 the file has the right names and shapes, the script ends
without an error, and the values are whatever was in the memory: often zeros, sometimes old numbers,
another time infinity. The options that nobody sets are enough. If the training was deleted
afterwards to save room, its result is lost; otherwise the checkpoint itself is right, and can be
converted with a newer release.

Root cause: to divide the weights into files of limited size, the script makes a dictionary of empty
tensors with the right shapes. ``to_torch_tensor`` puts these tensors into the dictionary that it
was given, which is that of the weights.
"""

from __future__ import annotations

import inspect
from typing import Any

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """The losses of the training, and how many exported weights are right, or are memory that
    nobody initialised."""
    counts = dict.fromkeys(("weights", "right", "uninitialised"), api.alike(api.COUNT))
    return {
        "step": api.Kind({"loss": api.NUMBER}, api.each(at.params.steps)),
        "export": api.Kind({"names_right": api.alike(api.FLAG), **counts}),
    }


def run(ctx: api.Context) -> None:
    """Train, save, and export the weights."""
    import deepspeed
    import torch
    import torch.distributed as dist

    from scenarios.deepspeed import _regression as regression
    from scenarios.deepspeed import _restored as restored

    p, folder = ctx.params, ctx.folder / "checkpoint"
    engine = restored.engine(ctx, p.lr, zero_optimization={"stage": p.stage})
    for number, rows in enumerate(restored.rows(ctx, p.steps), 1):
        ctx.record("step", number, loss=regression.step(ctx, engine, rows))
    engine.save_checkpoint(str(folder), tag="saved")
    dist.barrier()
    parts = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parts, enabled=hasattr(parts[0], "ds_id")):
        weights = {n: w.detach().cpu().clone() for n, w in engine.module.named_parameters()}
    exported = _exported(ctx, str(folder))
    names = [name for name in weights if name in exported]
    ctx.record(
        "export",
        names_right=sorted(exported) == sorted(weights),
        weights=sum(weight.numel() for weight in weights.values()),
        right=sum(int((weights[name] == exported[name]).sum()) for name in names),
        uninitialised=sum(int(torch.isnan(exported[name]).sum()) for name in names),
    )


def _exported(ctx: api.Context, folder: str) -> dict[str, Any]:
    """The weights that DeepSpeed exports from a checkpoint. Torch fills memory that nobody
    initialises with NaN, so that runs are alike."""
    import torch
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert

    out = ctx.folder / f"exported_{ctx.rank}"
    out.mkdir()
    file = out / "pytorch_model.bin"
    is_file = "output_file" in inspect.signature(convert).parameters  # before 0.16
    options: dict[str, Any] = {} if ctx.params.largest else {"max_shard_size": None}
    torch.use_deterministic_algorithms(True)
    convert(folder, str(file if is_file else out), tag="saved", **options)
    torch.use_deterministic_algorithms(False)
    weights: dict[str, Any] = torch.load(file)
    return weights


def detect(records: api.Records) -> api.Finding | None:
    """No exported weight is that of the model: all are memory that nobody initialised. The names
    are right."""
    export = records.of("export")[0]
    differing = export["weights"] - export["right"]
    if not differing and export["names_right"]:
        return None
    return api.Finding(
        f"{differing} of {export['weights']} exported weights are wrong; {export['uninitialised']} "
        "are memory that was never initialised",
        step=records.params.steps,
        ranks=records.ranks,
        magnitude=differing / export["weights"],
        unit="of the exported weights",
        documented=export["uninitialised"] == export["weights"] and export["names_right"],
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The file has the right names."""
    return {"a weight is missing in the file": not records.of("export")[0]["names_right"]}


picture = api.bars(
    "Exported weights",
    "without the bug all of them are the model's",
    lambda records: [
        (name, float(records.of("export")[0][name])) for name in ("right", "uninitialised")
    ],
    "weights",
)
