"""Right training loops, one for each stack, as the stack's documentation teaches it.

They have a folder of their own, because two things run them: ``signatures`` on the releases of the
catalogue, and the tests. One script serves many bugs through its arguments; those that it is always
given are in ``usual.json`` beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from harness.system.files import ROOT

FOLDER = ROOT / "loops"


@dataclass(frozen=True)
class Usual:
    """The arguments that a script is always given."""

    arguments: str
    save: str = ""
    resume: str = ""
    same_rows: bool = False
    """Whether its ranks are stages or parts of a model, which see the same rows."""


USUAL: dict[str, Usual] = {
    name: Usual(**words)
    for name, words in json.loads((FOLDER / "usual.json").read_text(encoding="utf-8")).items()
}
"""By the name of the script."""

SAVE, RESUME = USUAL["ddp.py"].save, USUAL["ddp.py"].resume


def script(name: str) -> str:
    """The path of a script."""
    return str(FOLDER / name)
