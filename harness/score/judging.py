"""Judges what detectors wrote: they learn from healthy runs, and then read the trace of each run.

A trace is copied to a folder with a neutral name first, because its own path names the variant.
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.config.run_config import DetectorConfig
from harness.runs.attachment import kind_of
from harness.runs.watched import alarm_of, several

Judged = tuple[list[dict[str, Any]], str]
"""The alarms of a run, and the error of the detector."""


def writes_traces(detector: DetectorConfig) -> bool:
    return hasattr(kind_of(vars(detector)), "judge")


@contextmanager
def judge(detector: DetectorConfig, healthy: Sequence[Path]) -> Iterator[Callable[[Path], Judged]]:
    """What judges a folder of traces, after the detector has learned from those of healthy runs."""
    with tempfile.TemporaryDirectory(prefix="traces-") as place:
        copied = 0

        def neutral(folder: Path) -> Path:
            nonlocal copied
            copied += 1
            return Path(shutil.copytree(folder, Path(place) / str(copied)))

        made = kind_of(vars(detector))()
        error = ""
        if hasattr(made, "fit"):
            _, error = _tried(made.fit, [neutral(folder) for folder in healthy])

        def judged(folder: Path) -> Judged:
            if error or not folder.exists():
                return [], error
            found, raised = _tried(made.judge, neutral(folder))
            return [alarm_of(one, 0) for one in several(found)], raised

        yield judged


def _tried(method: Callable[[Any], Any], argument: Any) -> tuple[Any, str]:
    try:
        return method(argument), ""
    except Exception:
        return None, traceback.format_exc(limit=-2)
