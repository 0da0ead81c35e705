"""``guard`` as a callback of transformers' Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the training: ``Trainer(..., callbacks=[GuardCallback()])``.

    The options are those of ``distributed_bugs.guard``. It begins when the callback is made, as
    the Trainer makes its optimizer later.
    """

    def __init__(self, **options: Any) -> None:
        import distributed_bugs

        distributed_bugs.guard(**options)
