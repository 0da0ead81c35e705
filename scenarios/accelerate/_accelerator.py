"""An Accelerator on this lane. Imports accelerate: import it inside ``run``."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from harness.bugs import api


def accelerator(ctx: api.Context, **loading: Any) -> Accelerator:
    """accelerate over this lane's ranks.

    ``loading`` goes to DataLoaderConfiguration, which releases before 0.28 do not have.
    """
    options: dict[str, Any] = {"cpu": ctx.lane is api.Lane.CPU}
    if loading:
        from accelerate.utils import DataLoaderConfiguration

        options["dataloader_config"] = DataLoaderConfiguration(**loading)
    engine: Any = Accelerator(**options)
    if engine.num_processes != ctx.world_size:
        raise api.Inconclusive(f"accelerate sees {engine.num_processes} of {ctx.world_size} ranks")
    return engine
