"""guard as a detector: ``score`` runs on each bug what ``guard`` injects into a training.

It watches the process, and judges while the training runs. Its report is its trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from harness.rank.events.trainers import is_engine
from harness.rank.guard.guard import Guard
from harness.rank.guard.settings import Settings
from harness.rank.guard.trainings.training import Training

ALARMS, SUMMARY, REFERENCES = "alarms.jsonl", "summary.json", "references.json"


class Detector:
    """guard, armed as often as it can be. It knows no bugs: naming a known one is no alarm."""

    settings = Settings(every=1, quiet=True)

    def record(self, path: Path) -> None:
        """Watch this process from now on. ``path`` is the folder of the report."""
        self._path, self._engines, self._optimizers = path, list[Any](), list[Any]()
        self._reduced: set[int] = set()
        folders = {"out": str(path), "saves": str(path.parent)}  # launches share what was saved
        self._guard = Guard(Settings(**{**vars(self.settings), **folders}))
        self._guard.install()

    def attach(self, model: Any, optimizer: Any, loader: Any = None, *, group: Any = None) -> None:
        """Note what is trained. Guard finds it itself."""
        if is_engine(model):
            self._engines.append(model)
        else:
            self._optimizers.append(optimizer)
        if isinstance(model, DistributedDataParallel):
            self._reduced |= {id(parameter) for parameter in model.parameters()}

    def close(self) -> None:
        """Wait for open checks, and write the summary, and which optimizers are references."""
        self._guard.close()
        numbers = [one.number for one in self._guard.trainings if self._is_reference(one)]
        (self._path / REFERENCES).write_text(json.dumps(numbers))

    def _is_reference(self, training: Training) -> bool:
        """Whether a scenario compares with this optimizer: it is of plain torch, and DeepSpeed's
        engine trains, or DDP reduces the gradients of other parameters alone, or it trains copies
        that are in no module. It follows one rank."""
        trained = {id(one) for engine in self._engines for one in _chain(engine.optimizer)}
        others = {id(one) for outer in self._optimizers for one in _chain(outer)}
        optimizer = training.optimizer()
        if id(optimizer) in trained or not trained | others:
            return False
        if self._reduced and optimizer is not None:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if held.isdisjoint(self._reduced):
                return True
        has_copies = not training.model.is_in_modules and not training.model.foreign
        return bool(trained) or (id(optimizer) not in others and has_copies)

    def judge(self, run: Path) -> list[SimpleNamespace]:
        """The alarms of a run. Raises if guard stopped in one of its processes."""
        for file in sorted(run.glob(f"*/{SUMMARY}")):
            summary = json.loads(file.read_text())
            stopped = [note for note in summary["notes"] if "stopped" in note]
            if error := summary["error"] or " ".join(stopped):
                raise RuntimeError(error)
        return list(_alarms(run))


class Budget(Detector):
    """guard with its usual budget: ``score guard/budget`` finds it by its name."""

    settings = Settings(quiet=True)


def _chain(optimizer: Any) -> Iterator[Any]:
    """An optimizer, such as that of an engine or of accelerate, and those that it wraps."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "optimizer", None)


def _alarms(run: Path) -> Iterator[SimpleNamespace]:
    for file in sorted(run.glob(f"*/{ALARMS}")):
        noted = file.parent / REFERENCES  # not there if nothing was attached
        references = json.loads(noted.read_text()) if noted.exists() else []
        for line in file.read_text().splitlines():
            alarm = json.loads(line)
            if alarm["optimizer"] in references:
                continue
            text, where = f"{alarm['check']}: {alarm['text']}", f"ranks {alarm['ranks']}"
            yield SimpleNamespace(text=text, step=alarm["step"], where=where)
