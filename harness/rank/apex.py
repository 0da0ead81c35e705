"""NVIDIA's apex, a build of its own that most machines lack: whether it is there, and what used it.

Standard library only: scenarios, shims and ranks all ask here.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

STATES = r"not installed|installed|imported|used: [A-Z]\w*(, [A-Z]\w*)*"
"""What ``state`` may say, as a regular expression."""

_used: list[str] = []


def installed() -> bool:
    """Whether NVIDIA's apex can be imported; what PyPI has under that name has no kernels."""
    # A stand-in of ours has a spec as well, but comes from nowhere.
    return all(getattr(find_spec(name), "origin", None) for name in ("apex", "amp_C"))


def use(name: str) -> None:
    """Say that a layer or an optimizer of the model in training is apex's: ``FusedAdam``."""
    if name not in _used:
        _used.append(name)


def state() -> str:
    """For the evidence: ``not installed``, ``installed``, ``imported`` by an upstream at least, or
    ``used: MixedFusedLayerNorm, FusedAdam``."""
    if not installed():
        return "not installed"
    if _used:
        return f"used: {', '.join(_used)}"
    imported = getattr(sys.modules.get("apex"), "__file__", None)
    return "imported" if imported else "installed"
