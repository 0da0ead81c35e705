"""A detector that is attached to a training or a loader of a rank, and its alarms."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Attached:
    """A detector that is attached to one training, and its alarms."""

    name: str
    detector: Any
    keep: Path
    """Where it keeps what it needs after a load."""
    alarms: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    changed: str = ""
    """What it changed in the training, in words."""
    error: str = ""

    def describe(self) -> dict[str, Any]:
        names = ("alarms", "calls", "seconds", "changed", "error")
        return {name: getattr(self, name) for name in names}

    def call(self, method: str, step: int, *arguments: Any, **keywords: Any) -> None:
        """Call a method of the detector, if it has it, and record the alarms that it returns."""
        function = getattr(self.detector, method, None)
        if function is None or self.error:
            return
        before, started = _generators(), time.perf_counter()
        try:
            findings = function(*arguments, **keywords)
        except Exception:
            self.error = traceback.format_exc(limit=-2)
            findings = None
        self.seconds += time.perf_counter() - started
        self.calls += method in {"step", "epoch"}
        if _generators() != before:
            self.changed = f"its {method}() draws random numbers of the training"
        self.alarms += [alarm_of(one, step) for one in several(findings)]


@dataclass
class Training:
    """A model and its optimizer, with the detectors that watch them."""

    model: Any
    optimizer: Any
    detectors: list[Attached]
    is_engine: bool = False
    steps: int = 0

    def step(self) -> None:
        self.steps += 1
        for detector in self.detectors:
            detector.call("step", self.steps, self.steps)

    def describe(self) -> dict[str, Any]:
        return {
            "model": type(self.model).__name__,
            "optimizer": type(self.optimizer).__name__,
            "steps": self.steps,
            "detectors": {one.name: one.describe() for one in self.detectors},
        }


@dataclass
class Reading:
    """A loader, with the detectors that watch it."""

    loader: Any
    detectors: list[Attached]
    epochs: int = 0
    iterator: Any = None
    """The one that is in an epoch; None between two."""
    batches: int = 0
    """Of this epoch."""

    def call(self, method: str, *arguments: Any) -> None:
        for detector in self.detectors:
            detector.call(method, self.epochs, *arguments)

    def note(self, iterator: Any, batches: Sequence[Any]) -> None:
        """Note that an iterator returned a batch, or that it ended."""
        if self.iterator is None and not batches and self.batches:
            return  # the end of an epoch whose last batch was known
        if self.iterator is not iterator:
            self.iterator, self.epochs, self.batches = iterator, self.epochs + 1, 0
            self.call("epoch", self.epochs)
        for batch in batches:
            self.call("batch", batch)
        self.batches += len(batches)
        if not batches or self.batches == self.length():
            self.call("epoch_end", self.epochs)
            self.iterator = None

    def length(self) -> int:
        """The number of batches that the loader reports: trainers do not ask for its end."""
        try:
            return len(self.loader)
        except (TypeError, NotImplementedError):
            return 0

    def describe(self) -> dict[str, Any]:
        return {
            "model": type(self.loader).__name__,
            "optimizer": "",
            "steps": self.epochs,
            "detectors": {one.name: one.describe() for one in self.detectors},
        }


def _generators() -> tuple[bytes, Any]:
    import torch

    return torch.get_rng_state().numpy().tobytes(), random.getstate()


def several(findings: Any) -> Iterable[Any]:
    """Turn the return value of a method into a list of alarms: None means no alarm."""
    return findings if isinstance(findings, list) else [] if findings is None else [findings]


def alarm_of(finding: Any, step: int) -> dict[str, Any]:
    """Read an alarm: a text, or an object with ``text`` and optionally ``step`` and ``where``."""
    at = getattr(finding, "step", None)
    return {
        "text": str(getattr(finding, "text", finding)),
        "step": at if isinstance(at, int) else step,
        "where": str(getattr(finding, "where", "")),
    }
