"""After a resume within an epoch, the Trainer restores the random state after it has read rows.

This affects users whose dataset draws random numbers from the global generators, as augmentation,
noise and random crops do, and who resume from a checkpoint within an epoch. The rows come in the
right order, but with other numbers than without a stop: the first ones are those of a new run, and
the later ones come a row too late. So a resumed run cannot be compared with a whole one, although
the checkpoint has the random states for this. Nothing shows it.

Root cause: the Trainer skips the batches of the steps that were done, reads the batches of the next
step, and restores the random states of the checkpoint only then. accelerate reads a batch in
advance, so by then two were read on the random state of the new process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued
from scenarios.common.line_edits import followed, left_out, setting

READ_AHEAD = 2
"""The batches that are read before the first one is trained: accelerate looks for the last one."""


def skipped_before(function: Any) -> api.Edits:
    """The loader of an epoch is left as it is."""
    yield from left_out(setting(function, "train_dataloader"))


def restored_before(function: Any) -> api.Edits:
    """Read the batches that were trained, and restore the random states before the next one."""
    yield from followed(
        setting(function, "epoch_iterator"),
        "done = steps_trained_in_current_epoch if rng_to_sync else 0",
        "for _ in range(done): next(epoch_iterator)",
        "if done: self._load_rng_state(resume_from_checkpoint)",
        "rng_to_sync = False",
    )


def a_row_late(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """After the resume, each row has another number than without a stop, and the rows are right.
    From the third row on, each number is that which the row before it has without a stop."""
    rest = whole[records.params.done :]
    late = zip(steps[READ_AHEAD:], rest[READ_AHEAD - 1 :], strict=False)
    return (
        [step["row"] for step in steps] == [step["row"] for step in rest]
        and all(a["number"] != b["number"] for a, b in zip(steps, rest, strict=True))
        and all(step["number"] == earlier["number"] for step, earlier in late)
    )


oracle = continued.Continued(
    a_row_late,
    facts=lambda at: {"row": api.COUNT, "number": api.NUMBER},
    fact="number",
    noun="random number of the row",
    checks={"row": "the row of a step"},
)


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed within an epoch, and its rows draw from the global generator."""
    p = records.params
    return api.Exercise.of(
        p.done % p.rows > 0,
        f"resumed after {p.done} of the {p.rows} steps of an epoch",
        "resumed at the end of an epoch",
    ) & api.Exercise.of(
        p.numbers == "global",
        "rows draw from the global generator",
        "each row has a generator of its own",
    )


def run(ctx: api.Context) -> None:
    """Train and save; or resume from the checkpoint in a new process."""
    import torch
    from transformers import Trainer, TrainerCallback

    from scenarios.common.hf_trainer import arguments

    p = ctx.params

    class Rows(torch.utils.data.Dataset[Any]):
        """Each row is its number, and a random one."""

        def __len__(self) -> int:
            return int(p.rows)

        def __getitem__(self, row: int) -> dict[str, Any]:
            own = torch.Generator().manual_seed(row) if p.numbers == "row" else None
            number = float(torch.rand((), generator=own))
            return {"x": torch.tensor([float(row), number]), "labels": torch.tensor([0.0])}

    class Model(torch.nn.Module):
        """A linear map, which records the row of each step."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)
            self.steps = iter(continued.steps(ctx))

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            row, number = x.flatten().tolist()
            ctx.record("step", next(self.steps), row=int(row), number=number)
            outputs = self.linear(x / p.rows)
            return {"loss": (outputs - labels).square().mean(), "logits": outputs}

    class Saves(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = state.global_step == p.done

    settings: dict[str, Any] = {
        "per_device_train_batch_size": 1,
        "max_steps": p.done + p.more,
        "learning_rate": 1e-4,
    }
    torch.manual_seed(ctx.seed)
    trainer = Trainer(
        model=Model().to(ctx.device),
        args=arguments(ctx, ctx.folder, **settings),
        train_dataset=Rows(),
        callbacks=[Saves()],
    )
    checkpoint = str(ctx.folder / f"checkpoint-{p.done}")
    resumes = ctx.launch == continued.RESUMED
    trainer.train(resume_from_checkpoint=checkpoint if resumes else None)
