"""All workers of a loader apply the same random augmentations, and repeat them in each epoch.

This affects everybody who augments with albumentations' ``Compose`` in a dataset that a DataLoader
reads with several workers, which is the usual way to train on images. The workers are copies of the
process that made the dataset, with copies of one random generator. So with w workers, w batches in
a row have the same sequence of augmentations, and each new epoch starts with the same sequence
again: the first rows of a batch are always flipped, the second never. The images are shuffled, so
nothing looks odd. Without workers all is right.

Root cause: since 1.4.21 ``Compose`` draws from a generator of its own, which is made with the
object. Earlier releases drew from the generators of Python and numpy, and PyTorch seeds Python's in
each worker and epoch. The maintainers have fixed it in AlbumentationsX, the successor under another
licence; albumentations itself has no further releases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api

BATCH = 2
"""Rows of a batch."""


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.persistent and not params.workers:
        raise ValueError("persistent needs workers")


RESEED = """
import torch

worker = torch.utils.data.get_worker_info()
if worker is not None and vars(self).get("_seeded") != worker.seed:
    self._seeded = worker.seed
    self.set_random_seed(worker.seed % 2**32)
"""


def reseed(function: Any) -> api.Edits:
    """The first call in a worker gives the generators the seed that PyTorch has for this worker."""
    import libcst as cst
    import libcst.matchers as m

    for line in m.findall(function, m.If(test=m.Name("args"))):
        yield line, cst.FlattenSentinel([*cst.parse_module(RESEED).body, line])


def plan(at: api.Position) -> api.Plan:
    """Which augmentation each row of an epoch got: the number of the row, counted over all epochs,
    that got it first."""
    drawn = {"drawn": api.many(api.COUNT, at.params.rows)}
    return {"epoch": api.Kind(drawn, api.each(at.params.epochs))}


def run(ctx: api.Context) -> None:
    """Read grey images through a DataLoader, with a random brightness."""
    import albumentations
    import numpy as np
    from torch.utils.data import DataLoader

    p = ctx.params
    np.random.seed(ctx.seed)
    brighten = albumentations.RandomBrightnessContrast(
        brightness_limit=0.4, contrast_limit=(0, 0), p=1
    )
    transform = albumentations.Compose([brighten])

    class Grey:
        """Its rows are the brightness of a grey image after the augmentation."""

        def __len__(self) -> int:
            return p.rows

        def __getitem__(self, row: int) -> float:
            if row >= p.rows:
                raise IndexError(row)
            image = np.full((4, 4, 3), 0.5, np.float32)
            return float(transform(image=image)["image"].mean())

    loader: Any = DataLoader(
        Grey(),  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=p.workers,
        persistent_workers=p.persistent,
    )
    first_draws: dict[float, int] = {}
    for epoch in api.each(p.epochs):
        numbers = [float(number) for batch in loader for number in batch]
        drawn = [first_draws.setdefault(number, len(first_draws)) for number in numbers]
        ctx.record("epoch", epoch, drawn=drawn)


def by_worker(records: api.Records) -> list[list[list[int]]]:
    """The augmentations of each epoch, and in it those of each worker, in its order."""
    workers = max(records.params.workers, 1)
    epochs = [record["drawn"] for record in records.of("epoch")]
    batches = [[drawn[i : i + BATCH] for i in range(0, len(drawn), BATCH)] for drawn in epochs]
    return [
        [[n for batch in epoch[worker::workers] for n in batch] for worker in range(workers)]
        for epoch in batches
    ]


def detect(records: api.Records) -> api.Finding | None:
    """All workers apply the same sequence of augmentations. Workers that are started for an epoch
    start from the same one in each epoch; others go on. Within the sequence all differ."""
    epochs = by_worker(records)
    numbers = [n for epoch in epochs for worker in epoch for n in worker]
    if len(set(numbers)) == len(numbers):
        return None
    sequences = [epoch[0] for epoch in epochs]
    alike = all(_shorter(worker, epoch[0]) for epoch in epochs for worker in epoch)
    repeated = all(sequence == sequences[0] for sequence in sequences)
    expected = sequences if records.params.persistent else sequences[:1]
    once = [n for sequence in expected for n in sequence]
    return api.Finding(
        f"{len(set(numbers))} different augmentations for {len(numbers)} rows in {len(epochs)} "
        f"epochs; the workers are {'alike' if alike else 'different'}, and the epochs are "
        f"{'alike' if repeated else 'different'}",
        step=1,
        ranks=records.ranks,
        magnitude=1 - len(set(numbers)) / len(numbers),
        unit="of the augmentations are repetitions",
        clock="epoch",
        documented=alike
        and repeated != records.params.persistent
        and len(set(once)) == len(once) == len(set(numbers))
        and records.params.workers > 0,
    )


def _shorter(worker: Sequence[int], longest: Sequence[int]) -> bool:
    return list(worker) == list(longest[: len(worker)])


def exercised(records: api.Records) -> api.Exercise:
    """Several workers augmented the rows, or one that was started again for each epoch."""
    p = records.params
    text = f"{p.workers} workers of the loader; {p.epochs} epochs"
    return api.Exercise(p.workers > (1 if p.persistent else 0), text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Within a batch, and in all batches of a worker, the augmentations differ."""
    batches = [
        worker[i : i + BATCH]
        for epoch in by_worker(records)
        for worker in epoch
        for i in range(0, len(worker), BATCH)
    ]
    return {"two rows of a batch have the same augmentation": any(a == b for a, b in batches)}


def _cells(records: api.Records) -> Iterator[tuple[int, int, str]]:
    draws_so_far: set[int] = set()
    for record in records.of("epoch"):
        for row, number in enumerate(record["drawn"]):
            yield row, record["step"], "again" if number in draws_so_far else "new"
            draws_so_far.add(number)


picture = api.grid(
    "Whether a row's augmentation is new",
    "with the bug the second worker repeats the first one, and each epoch repeats the first one",
    _cells,
    x="row",
    y="epoch",
    value="augmentation",
    wrong=("again",),
)
