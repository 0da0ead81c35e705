"""Callbacks of transformers and Lightning start guard, and its alarms go to the run's trackers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness import console_script as distributed_bugs
from harness.system.files import ROOT
from tests.overlays import lent_packages

NUMBERS = {"guard/alarms": 1.0, "guard/cost_percent": 0.5, "guard/check_ms": 9.0}
TEXT = (
    "step 1, rank 0: accumulation: the step counts the loss 2 times instead of once: as often as "
    "there are micro-batches (2 micro-batches, 1 rank)"
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options with which guard was started, in a process whose libraries are stand-ins."""
    calls: list[dict[str, Any]] = []
    names = {"transformers": "TrainerCallback", "lightning.pytorch": "Callback"}
    for name, base in names.items():
        module = ModuleType(name)
        setattr(module, base, type(base, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    package: Any = SimpleNamespace(guard=lambda **options: calls.append(options))
    monkeypatch.setitem(sys.modules, "distributed_bugs", package)
    for name in ("trainer_callback", "lightning_callback"):
        monkeypatch.delitem(sys.modules, f"harness.python.{name}", raising=False)
    return calls


def test_callback_of_lightning_starts_guard_in_the_process_that_fits(started: list[Any]) -> None:
    callback = distributed_bugs.LightningGuardCallback(every=5)
    assert started == []
    callback.setup(None, None, "validate")
    assert started == []
    callback.setup(None, None, "fit")
    assert started == [{"every": 5}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checks": ("replica",)}, "no check 'replica'. Choices: replicas, "),
        ({"checks": "replicas, gradient"}, "no check 'gradient'. Choices: "),
        ({"on_alarm": "stopp"}, "no action 'stopp'. Choices: warn, stop, command:..."),
        ({"on_alarm": "command:"}, "no action 'command:'"),
        ({"budget": 0}, "budget is 0: write percent"),
        ({"budget": "1"}, "budget is '1': write percent"),
        ({"every": -1}, "every is -1: write a number of steps"),
        ({"every": 1.5}, "every is 1.5: write a number of steps"),
    ],
)
def test_option_that_guard_does_not_know_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        distributed_bugs.guard(**options, out=str(tmp_path / "report"))
    assert not (tmp_path / "report").exists()


PACKAGES = {
    "transformers": "5.24.0",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "lightning": "2.6.6",
    "tensorboard": "2.21.0",
    "wandb": "0.31.0",
}


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("library", ["transformers", "lightning", "accelerate"])
def test_real_trackers_of_a_real_training_have_the_alarm(library: str, tmp_path: Path) -> None:
    with lent_packages("2026-11-20", **PACKAGES) as overlay:
        quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        ending = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "logged.py"), library],
            cwd=tmp_path,
            env={**os.environ, **quiet, "PYTHONPATH": f"{ROOT}:{overlay.site}"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert ending.returncode == 0, ending.stderr
    answers = json.loads(ending.stdout.splitlines()[-1])
    assert answers == {"tensorboard": [TEXT], "wandb": [TEXT]}
