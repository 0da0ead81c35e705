"""What the command, or the script, asks of guard: one JSON file; the environment has its path."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

from . import check_table

VARIABLE = "PYTHON_DISTRIBUTED_BUGS_GUARD"
"""The variable with the file's path. DeepSpeed's launcher passes on variables that begin so."""

ACTIONS = ("warn", "stop", "command:...")
"""What an alarm does."""


def report_in(event: str) -> None:
    """Tell the command that something happened here: an empty file beside the settings file."""
    path = os.environ.get(VARIABLE)
    if path:
        try:
            with open(os.path.join(os.path.dirname(path), event), "ab"):
                pass
        except OSError:  # the command has ended, or runs on another machine
            pass


@dataclass
class Settings:
    """What is watched, what it may cost, and what an alarm does."""

    budget: float = 1.0
    """The time that all checks together may take, in percent."""
    every: int = 0
    """Check each step with such a multiple instead; 0: as often as the budget allows."""
    checks: list[str] = field(default_factory=list)
    """The names of the checks; empty: all."""
    on_alarm: str = "warn"
    """``warn``, ``stop`` or ``command:...``."""
    out: str = ""
    """An existing folder for the report; empty: none."""
    saves: str = ""
    """The folder for what is kept of saved checkpoints; empty: ``out``."""
    quiet: bool = False
    """Whether alarms alone are printed."""
    check_only: bool = False
    """Whether the training ends after one step."""
    known: str = ""
    """The file with the bugs of the catalogue; empty: none."""

    @staticmethod
    def of_environment() -> Settings:
        """The settings of the file that the environment names; otherwise the usual ones."""
        path = os.environ.get(VARIABLE)
        if not path:
            return Settings()
        with open(path, encoding="utf-8") as file:
            return Settings(**json.load(file))

    def refuse_mistakes(self) -> None:
        """Raise ValueError for what no script can mean."""
        for name in self.checks:
            if name not in check_table.NAMES:
                raise ValueError(f"no check {name!r}. Choices: {', '.join(check_table.NAMES)}")
        action, _, argument = self.on_alarm.partition(":")
        if self.on_alarm not in ACTIONS[:2] and not (action == "command" and argument):
            raise ValueError(f"no action {self.on_alarm!r}. Choices: {', '.join(ACTIONS)}")
        if not (_is_number(self.budget, (int, float)) and 0 < self.budget <= 100):
            raise ValueError(f"budget is {self.budget!r}: write percent, above 0 and up to 100")
        if not (_is_number(self.every, (int,)) and self.every >= 0):
            often = "or 0: as often as the budget allows"
            raise ValueError(f"every is {self.every!r}: write a number of steps, {often}")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def _is_number(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
