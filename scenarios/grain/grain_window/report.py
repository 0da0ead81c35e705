"""Resume grain's WindowShuffleIterDataset: does it go on with the right rows?

Needs grain, and no GPU. The exit code is 3 if the bug is there."""

import importlib.metadata
from typing import Any

import grain.python as grain


def shuffled() -> Any:
    """20 rows, shuffled in windows of 5."""
    stream = grain.MapDataset.source(list(range(20))).to_iter_dataset()
    return iter(grain.experimental.WindowShuffleIterDataset(stream, window_size=5, seed=1))


print("grain", importlib.metadata.version("grain"))
whole, stopped, resumed = list(shuffled()), shuffled(), shuffled()
before = [next(stopped) for _ in range(3)]
resumed.set_state(stopped.get_state())
after = list(resumed)
print("without a stop:", *whole)
print("with a stop:   ", *before, "|", *after)
has_bug = before + after != whole
print("WRONG: another order after the resume" if has_bug else "right: the same order")
raise SystemExit(3 if has_bug else 0)
