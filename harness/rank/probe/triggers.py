"""The bugs of the catalogue that a run cannot set off, whatever its releases are.

``guard`` asks the same of its runs: the conditions for a bug are settings and objects of the run.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.rank.guard import facts

UNKNOWN = ("gradient_accumulation_steps", "precision")
"""Settings that a step does not show: a bug may step too early, and autocast leaves the weights."""


def impossible(file: str, optimizer: str) -> list[str]:
    """The names of the bugs of a file whose conditions this run does not meet. To be called within
    the step."""
    post: Any = SimpleNamespace(described=(), kind=optimizer)
    settings = facts.settings_of(post, 1, None)
    settings = {name: value for name, value in settings.items() if name not in UNKNOWN}
    bugs = [{**bug, "affected": {}} for bug in json.loads(Path(file).read_text(encoding="utf-8"))]
    modules = {module for module, _ in facts.callers()}
    possible = {bug["name"] for bug in facts.known_bugs(bugs, {}, settings, modules)}
    return sorted({bug["name"] for bug in bugs} - possible)
