"""Sends alarms and a few numbers to TensorBoard and to Weights & Biases.

A tracker is used if the script has imported it and has begun a run with it. Nothing is imported for
it. Both take what they get to another thread or process, so nobody waits for a network. One that
raises gets nothing more.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...training.layouts import living

PERIOD = 10.0
"""Seconds between two reports of numbers; an alarm is sent at once."""
WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


class Trackers:
    """The trackers of this process, which is rank 0."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """The trackers that failed."""
        self._tell = {"TensorBoard": self._tell_tensorboard, "Weights & Biases": self._tell_wandb}
        self._writer: Callable[[], Any] = lambda: None
        """TensorBoard's, to which the last report was sent."""
        self._last = 0.0

    def send(
        self, step: int, numbers: Mapping[str, float], alarms: Sequence[str], is_last: bool = False
    ) -> None:
        """Send new alarms now, and numbers now and then."""
        seconds = time.monotonic()
        if not (alarms or is_last or not self._last or seconds - self._last >= PERIOD):
            return
        self._last = seconds
        for name, tell in list(self._tell.items()):
            try:
                tell(step, numbers, alarms)
            except Exception as error:
                del self._tell[name]
                text = f"{name} gets nothing more: {type(error).__name__}: {error}"
                self.notes.append(text.split("\n")[0])

    def _tell_tensorboard(
        self, step: int, numbers: Mapping[str, float], alarms: Sequence[str]
    ) -> None:
        writer = self._writer()
        if not _is_open(writer):
            writer = _open_writer()
            self._writer = weakref.ref(writer) if writer is not None else lambda: None
        if writer is None:
            return
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        for text in alarms:
            writer.add_text("guard/alarm", text, step)
        if alarms:
            writer.flush()

    def _tell_wandb(self, step: int, numbers: Mapping[str, float], alarms: Sequence[str]) -> None:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            return
        # Without commit: the numbers go into the row that the script writes now, and its count of
        # steps stays.
        run.log(dict(numbers), commit=False)
        for text in alarms:
            run.alert("guard", text)


def _is_open(writer: Any) -> bool:
    # One that is closed would begin another file
    return getattr(writer, "file_writer", None) is not None


def _open_writer() -> Any:
    """A writer of TensorBoard that is open, found among the objects of this process."""
    modules = [sys.modules[name] for name in WRITERS if name in sys.modules]
    kinds = tuple(kind for module in modules if (kind := getattr(module, "SummaryWriter", None)))
    writers = living(lambda kind: issubclass(kind, kinds)) if kinds else []
    return next(filter(_is_open, writers), None)
