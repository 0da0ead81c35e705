"""``guard`` as a callback of Lightning."""

from __future__ import annotations

import sys
from typing import Any

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class LightningGuardCallback(Callback):  # type: ignore[misc]
    """Watches the training: ``L.Trainer(..., callbacks=[LightningGuardCallback()])``.

    The options are those of ``distributed_bugs.guard``.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin in this process, which may be another than the callback's. The optimizers are made
        later."""
        if stage == "fit":
            import distributed_bugs

            distributed_bugs.guard(**self._options)
