"""Which class a word of the command line names: one of ours, or a user's own."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

from harness.catalog import unknown
from harness.config.run_config import DetectorConfig
from harness.system.errors import UserError
from harness.system.installation import install

CLASS = "Detector"

TRAINCHECK = "traincheck"
"""The detector, and the package that it needs."""

TRAINING = ("attach", "step")
METHODS = {"judge": ("record", "attach"), "batch": ("attach",)}
"""The methods that a detector must have besides, if it has one of these; and those of others."""

OURS = {
    "accumulation": "the loss of all micro-batches and ranks counts once",
    "gradients": "the step uses the mean of the ranks' gradients",
    "loss_scale": "in fp16, steps are not skipped again and again",
    "precision": "the steps move the weights, also where these have few bits",
    "samples": "rows come once, to one rank, in an order of their own",
    "schedule": "the learning rate goes on by one with each step",
    "replicas": "what all ranks have a copy of stays equal",
    "state": "the state after a load is that of the save",
    "tied": "tied copies of a weight stay equal",
    "traincheck": "TrainCheck's rules hold, as learned from two healthy runs",
    "updates": "the step is the optimizer's formula, and reaches each parameter",
    "usual/gradient_norm": "a usual check: no gradient is ten times the usual norm",
    "usual/loss_spike": "a usual check: no loss is three times the usual one",
    "usual/nan": "a usual check: nothing is nan or infinite",
    "usual/weights": "a usual check: the ranks' weights have the same sum",
}
"""The detectors that come with this project, and what each says of a right training."""


def named(word: str) -> DetectorConfig:
    """The detector that a word names: ours by its name, ``FILE.py:CLASS`` or ``MODULE:CLASS``."""
    if word == TRAINCHECK and importlib.util.find_spec(TRAINCHECK) is None:
        raise UserError(f"{TRAINCHECK} is not installed: {install(TRAINCHECK)}")
    if word in OURS:
        module, _, kind = word.partition("/")
        name = "".join(part.capitalize() for part in kind.split("_")) or CLASS
        return DetectorConfig(word, f"harness.detectors.{module}", name, "")
    place, colon, kind = word.rpartition(":")
    if not (colon and kind.isidentifier()):
        raise UserError(f"{unknown('detector', word, OURS)} Or name FILE.py:CLASS")
    file = Path(place) if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    if file.is_file():
        module = file.stem if place.endswith(".py") else place
        root = file.parent if place.endswith(".py") else Path()
        found = DetectorConfig(word, module, kind, str(root.resolve()))
    elif not place.endswith(".py") and importlib.util.find_spec(place.partition(".")[0]):
        found = DetectorConfig(word, place, kind, "")
    else:
        what = "file" if place.endswith(".py") else "module"
        raise UserError(f"no {what} {place} for {word}: name FILE.py:CLASS or MODULE:CLASS")
    _refuse_without_class(found)
    return found


def _refuse_without_class(found: DetectorConfig) -> None:
    """Import the detector here, so that a mistake in it is one line before anything runs."""
    if found.root and found.root not in sys.path:
        sys.path.insert(0, found.root)
    try:
        kind = getattr(importlib.import_module(found.module), found.kind, None)
    except Exception as error:
        raise UserError(f"{found.name}: {type(error).__name__}: {error}") from None
    if not callable(kind):
        raise UserError(f"{found.name}: {found.module} has no class {found.kind}")
    wanted = next((methods for one, methods in METHODS.items() if hasattr(kind, one)), ())
    if missing := [name for name in wanted or TRAINING if not hasattr(kind, name)]:
        raise UserError(f"{found.name} has no method {missing[0]}: docs/detectors.md")
    parameters = inspect.signature(kind.attach).parameters.values()
    if not any(p.name == "group" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise UserError(f"{found.name}: attach must take group=: docs/detectors.md")
