"""Sends alarms and a few numbers to TensorBoard and to Weights & Biases, from a thread of its own.

A tracker is used if the script has imported it and has begun a run with it. Nothing is imported for
it. A tracker may wait for a network, so neither the training nor the judge waits for this thread,
and one that raises gets nothing more.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...training.layouts import living

PERIOD = 10.0
"""Seconds between two reports of numbers; an alarm is sent at once."""
MOST_WAITING = 100
"""Reports that wait for a slow tracker; more are dropped."""
END = 2.0
"""Seconds that the end of the process waits for the trackers."""
WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


class Trackers:
    """The trackers of this process, which is rank 0."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """The trackers that failed."""
        self._tell = {"TensorBoard": self._tell_tensorboard, "Weights & Biases": self._tell_wandb}
        self._writer: Callable[[], Any] = lambda: None
        """TensorBoard's, to which the last report was sent."""
        self._jobs: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._last = 0.0

    def send(
        self, step: int, numbers: Mapping[str, float], alarms: Sequence[str], is_last: bool = False
    ) -> None:
        """Send new alarms now, and numbers now and then. It never waits."""
        seconds = time.monotonic()
        if not (alarms or is_last or not self._last or seconds - self._last >= PERIOD):
            return
        self._last = seconds
        if not any(name in sys.modules for name in (*WRITERS, "wandb")):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="guard-trackers", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait((step, numbers, alarms))
        except queue.Full:
            note = "a tracker is slow: some reports were not sent"
            self.notes += [] if note in self.notes else [note]

    def close(self) -> None:
        """Send what waits, for a short time."""
        if self._thread is not None:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(END)

    def _run(self) -> None:
        while (news := self._jobs.get()) is not None:
            for name, tell in list(self._tell.items()):
                try:
                    tell(*news)
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
    return next(filter(_is_open, living(lambda kind: issubclass(kind, kinds))), None)
