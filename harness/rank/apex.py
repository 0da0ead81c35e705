"""Whether NVIDIA's apex is installed, and what used it. Most machines lack it.

Standard library only: scenarios, shims and ranks all import this.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

STATES = r"not installed|installed|imported|used: [A-Z]\w*(, [A-Z]\w*)*"
"""Matches what ``state`` returns."""

_layers: list[str] = []


def installed() -> bool:
    """Whether NVIDIA's apex can be imported; what PyPI has under that name has no kernels."""
    # Our stand-in has a spec, too, but no origin.
    return all(getattr(find_spec(name), "origin", None) for name in ("apex", "amp_C"))


def use(name: str) -> None:
    """Note that the training uses this layer or optimizer of apex: ``FusedAdam``."""
    if name not in _layers:
        _layers.append(name)


def state() -> str:
    """Return ``not installed``, ``installed``, ``imported`` (by an upstream) or
    ``used: MixedFusedLayerNorm, FusedAdam``, for the evidence."""
    if not installed():
        return "not installed"
    if _layers:
        return f"used: {', '.join(_layers)}"
    imported = getattr(sys.modules.get("apex"), "__file__", None)
    return "imported" if imported else "installed"
