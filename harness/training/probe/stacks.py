"""What a hunt probes: for each stack one of our loops, and the settings that are crossed.

The loops are right, so each relation that breaks is a fault of the releases, or of probe. Settings
are crossed so that every two values of different factors meet, in few combinations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from harness.training.probe.prober import Loop

Pair = tuple[int, int, int, int]
"""A factor, its value, another factor, its value; each by number."""


def crossed(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Combinations of one value (by number) of each factor; ``sizes`` are their numbers of values.

    The first combination has every factor's first value. The others are chosen greedily: each
    covers many pairs that no earlier one has, so a run that is cut short has the most of them.
    """
    missing = {
        (f, a, g, b)
        for f, g in combinations(range(len(sizes)), 2)
        for a in range(sizes[f])
        for b in range(sizes[g])
    }
    rows = [(0,) * len(sizes)]
    missing -= _pairs(rows[0])
    while missing:
        rows.append(_next(sizes, missing))
        missing -= _pairs(rows[-1])
    if len(sizes) == 1:
        rows = [(value,) for value in range(sizes[0])]
    return rows


def _pairs(row: Sequence[int]) -> set[Pair]:
    return {(f, row[f], g, row[g]) for f, g in combinations(range(len(row)), 2)}


def _next(sizes: Sequence[int], missing: set[Pair]) -> tuple[int, ...]:
    """A combination around the first missing pair, the other factors filled in one by one."""
    f, a, g, b = min(missing)
    row = {f: a, g: b}
    for factor in range(len(sizes)):
        if factor not in row:
            gains = [_gain(row, factor, value, missing) for value in range(sizes[factor])]
            row[factor] = gains.index(max(gains))
    return tuple(row[factor] for factor in range(len(sizes)))


def _gain(row: dict[int, int], factor: int, value: int, missing: set[Pair]) -> int:
    """How many missing pairs a value forms with the chosen ones."""
    ordered = (
        (factor, value, other, at) if factor < other else (other, at, factor, value)
        for other, at in row.items()
    )
    return sum(pair in missing for pair in ordered)


@dataclass(frozen=True)
class Choice:
    """A value of a setting: arguments for the script, or where it is stopped."""

    arguments: str = ""
    at: int = 2
    steps: int = 4


@dataclass(frozen=True)
class HuntedStack:
    """Packages that are used together, and how they are probed."""

    name: str
    loop: Loop
    packages: tuple[str, ...]
    """The first one is the subject: its releases are searched for the first with a fault."""
    factors: Mapping[str, tuple[Choice, ...]]
    """The first choice of each is the default."""

    def rows(self) -> list[tuple[int, ...]]:
        """The crossed settings, by the numbers of their choices."""
        return crossed([len(choices) for choices in self.factors.values()])

    def loop_of(self, row: tuple[int, ...]) -> Loop:
        """The loop with these choices."""
        chosen = [choices[n] for choices, n in zip(self.factors.values(), row, strict=True)]
        words = [self.loop.arguments, *(each.arguments for each in chosen)]
        stops = [each for each in chosen if (each.at, each.steps) != (2, 4)]
        at, steps = (stops[0].at, stops[0].steps) if stops else (self.loop.at, self.loop.steps)
        return replace(self.loop, arguments=" ".join(filter(None, words)), at=at, steps=steps)


def flags(*words: str) -> tuple[Choice, ...]:
    """Choices that are arguments only; an empty one gives none."""
    return tuple(map(Choice, words))


CLIP = flags("", "--clip 0.1")
BF16 = flags("", "--bf16")
OPTIMIZER = flags("", "--optimizer sgd")

TRAINER = HuntedStack(
    "Trainer",
    Loop("trainer.py", "--full_rows true"),
    ("transformers", "accelerate"),
    {
        "model": flags(
            "--model llama",
            "--model bert-sequence",
            "--model bert-token",
            "--model bert-masked",
            "--model t5",
            "--model bart",
            "--model gpt2",
        ),
        "clipping": flags("--max_grad_norm 0", "--max_grad_norm 0.1"),
        "precision": flags("", "--bf16 true --use_cpu true"),
        "optimizer": flags("", "--optim sgd"),
        "scheduler": flags("", "--lr_scheduler_type cosine --warmup_steps 2"),
        "resume": (Choice(), Choice("--rows 36", at=4, steps=6)),  # in the second epoch
        "evaluation": flags("", "--evaluate true --eval_strategy steps --eval_steps 2"),
    },
)
"""Rows have one length: otherwise the mean over a micro-batch's tokens differs by design."""

GROUPED = HuntedStack(
    "Trainer, rows grouped by length",
    replace(TRAINER.loop, arguments="--model llama --group-by-length", layouts=("resume",)),
    TRAINER.packages,
    {"resume": (Choice(), Choice("--rows 48", at=5, steps=7)), "seed": flags("", "--seed 7")},
)

STACKS = (
    TRAINER,
    GROUPED,
    HuntedStack(
        "Trainer, padded rows",
        Loop("trainer.py", "--model llama"),
        TRAINER.packages,
        {
            "precision": flags("", "--bf16 true --use_cpu true"),
            "clipping": flags("--max_grad_norm 0", "--max_grad_norm 0.1"),
            "loader": flags("", "--dataloader_drop_last true", "--dataloader_num_workers 1"),
        },
    ),
    HuntedStack(
        "accelerate",
        Loop("accelerated.py"),
        ("accelerate",),
        {
            "clipping": flags("--clip 1.0", "--clip 0.05"),
            "seeds": flags("", "--device-specific"),
            "seed": flags("", "--seed 7"),
        },
    ),
    HuntedStack(
        "DeepSpeed",
        Loop("zero.py"),
        ("deepspeed",),
        {
            "stage": flags("--stage 0", "--stage 1", "--stage 2", "--stage 3"),
            "precision": BF16,
            "clipping": CLIP,
            "scheduler": flags("", "--warmup 8"),
            "optimizer": OPTIMIZER,
        },
    ),
    HuntedStack(
        "DeepSpeed's pipeline",
        Loop("pipeline.py"),
        ("deepspeed",),
        {
            "stage": flags("--stage 1", "--stage 0"),
            "tied": flags("", "--tied"),
            "precision": BF16,
            "clipping": CLIP,
        },
    ),
    HuntedStack(
        "datasets",
        Loop("streaming.py", layouts=("accumulation", "resume")),
        ("datasets",),
        {"transform": flags("--transform none", "--transform map", "--transform filter")},
    ),
    HuntedStack(
        "Lightning",
        Loop("lightning_module.py"),
        ("lightning",),
        {
            "clipping": CLIP,
            "precision": flags("", "--precision bf16-mixed"),
            "optimizer": OPTIMIZER,
        },
    ),
    HuntedStack(
        "trl",
        Loop("sft.py"),
        ("trl", "transformers", "accelerate", "datasets"),
        {
            "clipping": flags("--max_grad_norm 0", "--max_grad_norm 0.1"),
            "scheduler": flags("", "--lr_scheduler_type cosine --warmup_steps 2"),
        },
    ),
)
