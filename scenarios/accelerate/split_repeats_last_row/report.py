"""Split 8 and 3 rows between 4 ranks with accelerate: does each row come once?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import accelerate
import torch
from accelerate import PartialState

RANKS = 4


def split(counts: torch.Tensor) -> None:
    """Count how often each row comes, in the row of the table that belongs to this rank."""
    state = PartialState(cpu=True)
    for place, rows in enumerate((8, 3)):
        with state.split_between_processes(list(range(rows))) as part:
            for row in part:
                counts[state.process_index, place, row] += 1
    state.wait_for_everyone()  # a rank that ends early breaks the others' connections


if __name__ == "__main__":
    counts = torch.zeros(RANKS, 2, 8, dtype=torch.long).share_memory_()
    accelerate.debug_launcher(split, (counts,), num_processes=RANKS)
    print("accelerate", accelerate.__version__)
    for place, rows in enumerate((8, 3)):
        came = counts.sum(0)[place, :rows].tolist()
        print(f"{rows} rows on {RANKS} ranks: each row came {came} times")
    has_bug = came != [1] * 3
    print("WRONG: the last row comes again" if has_bug else "right: each row comes once")
    raise SystemExit(3 if has_bug else 0)
