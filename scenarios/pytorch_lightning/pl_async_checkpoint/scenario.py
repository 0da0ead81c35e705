"""AsyncCheckpointIO copies nothing: the file has the weights of a later step than it says.

This affects users of Lightning's ``AsyncCheckpointIO``, which writes checkpoints in a thread while
the training goes on. If the thread is late, the file has the weights of a later step, or a mixture
of several steps, but the counters, the schedule and the place in the data of the step at which it
was saved. A run that is resumed from it does these steps a second time.

Root cause: ``save_checkpoint`` hands the checkpoint to the thread as it is. Its tensors are those
of the model, which the optimizer changes in place. The fix copies them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.bugs import api


@dataclass
class Params(api.Knobs):
    steps: int = api.knob(6, least=2, about="of training")
    save: int = api.knob(2, least=1, about="step after which the checkpoint is saved")
    late: int = api.knob(2, least=1, unit="steps", about="after which the disk answers")
    io: str = api.knob(
        "async", choices=("async", "plain"), about="plugin: AsyncCheckpointIO, or the default one"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.save + self.late > self.steps:
            raise ValueError("scenario.save + scenario.late must not exceed scenario.steps")


SCENARIO = api.Scenario(
    report=(
        "Fix AsyncCheckpointIO: the checkpoint may change while it is written",
        "https://github.com/Lightning-AI/pytorch-lightning/pull/21079",
    ),
    fix="https://github.com/Lightning-AI/pytorch-lightning/pull/21079",
    symptom="parameters that change during an asynchronous save are saved as they are when they "
    "are written",
    trigger="AsyncCheckpointIO, and steps of the optimizer before the file is written",
    remedy="save with the default plugin",
    pins={"pytorch-lightning": "2.5.3"},
    harm="wrong resume",
    visibility="silent",
    settings={"code": api.by_code("the Trainer has the plugin AsyncCheckpointIO")},
    seen={
        "pytorch_lightning.plugins.io.async_plugin.AsyncCheckpointIO or "
        "lightning.pytorch.plugins.io.async_plugin.AsyncCheckpointIO": {}
    },
    files=("pytorch_lightning/plugins/io/async_plugin.py",),
    releases="pytorch-lightning>=2",  # the first with its own lightning_fabric
    ranks=1,
    absent=(
        api.Absent(
            "pytorch-lightning<1.7",
            "AsyncCheckpointIO came with 1.7.0",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.7.0/src/pytorch_lightning/plugins/io/async_plugin.py",
        ),
    ),
    present=(
        api.Present(
            "pytorch-lightning>=1.7,<2",
            "save_checkpoint gives the checkpoint to the thread as it is",
            "https://github.com/Lightning-AI/pytorch-lightning/blob/1.8.6/src/pytorch_lightning/plugins/io/async_plugin.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("2.5.4"),
        "control": api.control("2.5.3 with the default plugin", params={"io": "plain"}),
        "next_step": api.expect_symptom(
            about="2.5.3, the disk answers one step later", params={"late": 1}
        ),
    },
)


def plan(at: api.Position) -> api.Plan:
    """The weight after each step, and what the file says."""
    after = api.many(api.NUMBER, at.params.steps)
    return {"saved": api.Kind({"after": after, "weight": api.NUMBER, "at": api.COUNT})}


def run(ctx: api.Context) -> None:
    """Train and save with Lightning; read the file."""
    from scenarios.pytorch_lightning.pl_async_checkpoint import training

    after, file = training.fit(ctx)
    weight = file["state_dict"]["weight"].item()
    ctx.record("saved", after=after, weight=weight, at=file["global_step"])


def detect(records: api.Records) -> api.Finding | None:
    """The file says the step of the save, and has the weight of the step after which it was
    written."""
    p, saved = records.params, records.of("saved")[0]
    after = saved["after"]
    if saved["at"] != p.save or len(set(after)) < len(after):
        return api.Finding("the file or the training has other steps", documented=False)
    if api.near(saved["weight"], after[p.save - 1], share=1e-6):
        return None
    late = p.save + p.late
    return api.Finding(
        f"saved after step {p.save} with the weight {after[p.save - 1]:.4g}; the file says step "
        f"{saved['at']}, and its weight is {saved['weight']:.4g}, that after step {late} is "
        f"{after[late - 1]:.4g}",
        step=p.save,
        ranks=records.ranks,
        magnitude=float(p.late),
        unit="steps too late",
        documented=api.near(saved["weight"], after[late - 1], share=1e-6),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The plugin is asynchronous, and the weight changed before the file was written."""
    p = records.params
    text = f"plugin: {p.io}; saved after step {p.save}, written {p.late} steps later"
    return api.Exercise.of(p.io == "async", text, f"plugin: {p.io}")


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The file is complete, and says the right step."""
    differs = any(saved["at"] != records.params.save for saved in records.of("saved"))
    return {"the file says another step than that of the save": differs}


def _weights(records: api.Records) -> Iterator[tuple[str, float]]:
    saved = records.of("saved")[0]
    yield "when it was saved", saved["after"][records.params.save - 1]
    yield "in the file", saved["weight"]


picture = api.bars(
    "The weight when it was saved, and in the file",
    "with the bug the file has the weight of a later step",
    _weights,
    "weight",
)
