"""Where a layout parts from the reference, in words and for programs."""

from __future__ import annotations

from dataclasses import dataclass

from harness.training.probe.compare.faults import Stage

SENTENCES = {
    Stage.WEIGHTS: "the weights that the ranks begin with",
    Stage.LOADER: "the loader, or its sampler",
    Stage.LOSS: "the loss, or the factor that it has before the backward",
    Stage.ACCUMULATION: "the accumulation of the micro-batches' gradients",
    Stage.REDUCTION: "the reduction of the gradients over the ranks",
    Stage.CLIPPING: "the clipping of the gradients",
    Stage.OPTIMIZER: "the step of the optimizer",
    Stage.SCHEDULE: "the schedule of the learning rate",
    Stage.CHECKPOINT: "the checkpoint: what is saved, or what is loaded",
    Stage.EVALUATION: "the evaluation",
}
"""What a report says of a stage."""


@dataclass(frozen=True)
class Place:
    """The first place where a layout parts from the reference."""

    stage: Stage | None = None
    """None if it is not determined."""
    text: str = ""
    """The place in words; without one, why it is not determined."""
    module: str | None = None
    """Its name in the model; empty for the model itself."""
    kind: str | None = None
    """Its class."""
    file: str | None = None
    line: int | None = None
    layout: str = ""
    """The name of the layout."""

    @property
    def sentence(self) -> str:
        return self.text if self.stage else f"not determined, because {self.text}"


def of_stage(stage: Stage, remark: str = "") -> Place:
    """A stage as a place. ``remark`` follows its name."""
    return Place(stage, SENTENCES[stage] + remark)


def undetermined(why: str) -> Place:
    return Place(text=why)
