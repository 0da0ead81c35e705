"""Models whose pass fails, or ends its process, for ``unbuilt_apart``."""

from __future__ import annotations

import os
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from harness.rank.models.pairs import unbuilt_apart
from harness.rank.models.subject import Subject
from tests import made_models
from tests.made_models import Decoder as Decoder


class Fails(Decoder):
    def forward(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("it fails")


class Ends(Decoder):
    def forward(self, *_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def apart(cls: type[Decoder]) -> str:
    """What ``unbuilt_apart`` says of a model. Fails if this process ran its pass."""
    passes: list[str] = []

    class Counted(cls):  # type: ignore[misc, valid-type]
        def forward(self, *inputs: Any, **named: Any) -> Any:
            passes.append("")  # as a model that asks CUDA for its capability
            return super().forward(*inputs, **named)

    with tempfile.TemporaryDirectory() as folder:
        make = partial(made_models.model_and_batch, Counted)
        reason = unbuilt_apart(Subject("own", make, Path(folder)))
    assert not passes
    return reason
