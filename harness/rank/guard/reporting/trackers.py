"""Sends alarms and a few numbers to the trackers that the run uses, from a thread of their own.

A tracker is used if the script has imported it and has begun a run with it. Nothing is imported for
it. A tracker may wait for a network, so neither the training nor the judge waits for this thread,
and one that raises gets nothing more.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PERIOD = 10.0
"""Seconds between two reports of numbers; an alarm is sent at once."""
MOST_WAITING = 100
"""Reports that wait for a slow tracker; more are dropped."""
END = 2.0
"""Seconds that the end of the process waits for the trackers."""
LONGEST = 1000
"""Characters of an alarm."""
WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


@dataclass
class News:
    """What a tracker gets after a check."""

    step: int
    numbers: dict[str, float]
    """``guard/alarms``, ``guard/cost_percent`` and ``guard/check_ms``."""
    alarms: Sequence[str]
    """The new ones."""


class Trackers:
    """The trackers of this process, which is rank 0."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """The trackers that failed."""
        self._writer: Callable[[], Any] = lambda: None
        self._mlflow_run = ""
        self._mlflow_client: Any = None
        """That of the run; None: that of MLflow's own settings."""
        self._instruments: dict[str, Any] = {}
        self._jobs: queue.Queue[News | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._last = 0.0
        self._failed: set[str] = set()

    def wrote(self, writer: Any) -> None:
        """Note the writer of TensorBoard to which the script wrote last."""
        if threading.current_thread() is not self._thread and self._writer() is not writer:
            self._writer = weakref.ref(writer)

    def look(self) -> None:
        """Find what only the thread that trains sees: MLflow keeps the active run for a thread."""
        if "mlflow" not in sys.modules or "MLflow" in self._failed:
            return
        try:
            run = sys.modules["mlflow"].active_run()
            self._mlflow_run = run.info.run_id if run is not None else self._mlflow_run
        except Exception as error:
            self._fail("MLflow", error)

    def use_mlflow(self, client: Any, run_id: str) -> None:
        """Send to a run that is not the active one of a thread, as that of Lightning's logger."""
        self._mlflow_client, self._mlflow_run = client, run_id

    def send(self, news: News, is_last: bool = False) -> None:
        """Send alarms now, and numbers now and then. It never waits."""
        seconds = time.monotonic()
        if not (news.alarms or is_last or not self._last or seconds - self._last >= PERIOD):
            return
        self._last = seconds
        names = (*WRITERS, "wandb", "mlflow", "opentelemetry.metrics", "opentelemetry.trace")
        if not any(name in sys.modules for name in names):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="guard-trackers", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(news)
        except queue.Full:
            self._note("a tracker is slow: some reports were not sent")

    def close(self) -> None:
        """Send what waits, for a short time."""
        if self._thread is not None:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(END)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _run(self) -> None:
        while True:
            news = self._jobs.get()
            if news is None:
                return
            for name, tell in (
                ("TensorBoard", self._tell_tensorboard),
                ("Weights & Biases", self._tell_wandb),
                ("MLflow", self._tell_mlflow),
                ("OpenTelemetry", self._tell_opentelemetry),
            ):
                if name in self._failed:
                    continue
                try:
                    tell(news)
                except Exception as error:
                    self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self._failed.add(name)
        self._note(f"{name} gets nothing more: {type(error).__name__}: {error}".split("\n")[0])

    # -- each tracker --

    def _tell_tensorboard(self, news: News) -> None:
        writer = self._writer()
        if writer is None:
            writer = _live_writer()
            self._writer = weakref.ref(writer) if writer is not None else lambda: None
        # One that is closed would begin another file
        if writer is None or getattr(writer, "file_writer", None) is None:
            return
        for name, value in news.numbers.items():
            writer.add_scalar(name, value, news.step)
        for text in news.alarms:
            writer.add_text("guard/alarm", text, news.step)
        if news.alarms:
            writer.flush()

    def _tell_wandb(self, news: News) -> None:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            return
        # Without commit: the numbers go into the row that the script writes now, and its count of
        # steps stays.
        run.log(dict(news.numbers), commit=False)
        for text in news.alarms:
            run.alert("guard", text)

    def _tell_mlflow(self, news: News) -> None:
        mlflow, run = sys.modules.get("mlflow"), self._mlflow_run
        if mlflow is None or not run:
            return
        client = self._mlflow_client or mlflow.MlflowClient()
        for name, value in news.numbers.items():
            client.log_metric(run, name, value, step=news.step)
        total = int(news.numbers["guard/alarms"])
        for number, text in enumerate(news.alarms, total - len(news.alarms) + 1):
            client.set_tag(run, f"guard.alarm.{number}", text)

    def _tell_opentelemetry(self, news: News) -> None:
        # The functions that return a provider would make one if the script has set none
        meters = getattr(sys.modules.get("opentelemetry.metrics._internal"), "_METER_PROVIDER", 0)
        tracers = getattr(sys.modules.get("opentelemetry.trace"), "_TRACER_PROVIDER", None)
        if meters:
            self._measure(meters, news)
        if tracers is not None:
            tracer = tracers.get_tracer("guard")
            for text in news.alarms:
                span = tracer.start_span("guard.alarm")
                span.add_event("guard.alarm", {"guard.text": text, "guard.step": news.step})
                span.end()

    def _measure(self, provider: Any, news: News) -> None:
        if not self._instruments:
            meter = provider.get_meter("guard")
            gauge = getattr(meter, "create_gauge", None) or meter.create_histogram
            self._instruments["guard/alarms"] = meter.create_counter("guard.alarms")
            for name in ("guard/cost_percent", "guard/check_ms"):
                self._instruments[name] = gauge(name.replace("/", "."))
        self._instruments["guard/alarms"].add(len(news.alarms))
        for name in ("guard/cost_percent", "guard/check_ms"):
            instrument = self._instruments[name]
            record = getattr(instrument, "set", None) or instrument.record
            record(news.numbers[name])


def _live_writer() -> Any:
    """An open writer of TensorBoard: the script may have imported it too late for an event."""
    modules = [sys.modules[name] for name in WRITERS if name in sys.modules]
    kinds = tuple(kind for module in modules if (kind := getattr(module, "SummaryWriter", None)))
    if not kinds:
        return None
    writers = (one for one in gc.get_objects() if issubclass(type(one), kinds))
    return next((one for one in writers if getattr(one, "file_writer", None) is not None), None)
