"""Prepares the next runs of a command while another run is under way.

Errors are ignored here: the run itself meets them again and reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from harness.config.run_config import RunConfig
from harness.launch.server_pool import Pool
from harness.overlays import overlay
from harness.runs.run import make_overlay, prepared
from harness.system.machine import cache_folder
from harness.upstream import uv

Prepare = Callable[[RunConfig], object]


@contextmanager
def ahead(pool: Pool) -> Iterator[Prepare]:
    """Yield a function that prepares a run: it makes the overlays and starts the servers in
    ``pool``. The runs are prepared one after another, in a thread.

    Leaving the context cancels what is not done.
    """
    with ThreadPoolExecutor(1, "ahead") as worker:
        try:
            yield lambda config: worker.submit(prepared, config, pool)
        finally:
            worker.shutdown(wait=False, cancel_futures=True)
            uv.give_up()


@contextmanager
def overlays_ahead(configs: Sequence[RunConfig]) -> Iterator[None]:
    """Make the overlays of several runs in the background, in the order of the runs.

    Leaving the context cancels what is not done.
    """
    cache = cache_folder()
    with overlay.makers() as makers:
        for config in configs:
            if config.params is None or config.installed:  # a broken scenario; no overlay needed
                continue
            for variant in config.variants:
                makers.submit(make_overlay, config, variant, cache)
        yield
