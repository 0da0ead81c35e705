"""What the next runs of a command need, prepared while another run is under way.

What hinders the preparation, the run itself meets again and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from harness.config import RunConfig
from harness.machine import cache_folder
from harness.trial.run import make_overlay, prepared
from harness.trial.server_pool import Pool
from harness.upstream import overlay, uv

Prepare = Callable[[RunConfig], object]


@contextmanager
def ahead(pool: Pool) -> Iterator[Prepare]:
    """Give out a function that has a run's overlays made, and the processes that it will be forked
    from importing, in a thread of its own, one run after another.

    Leaving the context gives up what is not done.
    """
    with ThreadPoolExecutor(1, "ahead") as worker:
        try:
            yield lambda config: worker.submit(prepared, config, pool)
        finally:
            worker.shutdown(wait=False, cancel_futures=True)
            uv.give_up()


@contextmanager
def overlays_ahead(configs: Sequence[RunConfig]) -> Iterator[None]:
    """Have the overlays of several runs made meanwhile, in the order of the runs.

    Leaving the context gives up what is not done.
    """
    cache = cache_folder()
    with overlay.makers() as makers:
        for config in configs:
            if config.params is None or config.installed:  # a broken scenario; nothing to make
                continue
            for variant in config.variants:
                makers.submit(make_overlay, config, variant, cache)
        yield
