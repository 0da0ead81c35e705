"""An Accelerator on this lane. Imports accelerate: import it from a scenario's ``run``."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from harness.spec import Context, Lane


def accelerator(ctx: Context, **loading: Any) -> Accelerator:
    """accelerate over this lane's ranks; ``loading`` are options of its DataLoaderConfiguration,
    which releases before 0.28 do not have."""
    options: dict[str, Any] = {"cpu": ctx.lane is Lane.CPU}
    if loading:
        from accelerate.utils import DataLoaderConfiguration

        options["dataloader_config"] = DataLoaderConfiguration(**loading)
    made: Any = Accelerator(**options)
    assert made.num_processes == ctx.world_size, "accelerate does not see all ranks"
    return made
