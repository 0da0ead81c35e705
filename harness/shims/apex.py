"""NVIDIA's apex, a build of its own that most machines lack: whether it is there, and was used."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def installed() -> bool:
    """Whether NVIDIA's apex can be imported; what PyPI has under that name has no kernels."""
    # A stand-in of ours has a spec as well, but comes from nowhere.
    return all(getattr(find_spec(name), "origin", None) for name in ("apex", "amp_C"))


def state() -> str:
    """For the evidence: ``not installed``, ``installed`` or ``used``, that is imported by now."""
    if getattr(sys.modules.get("apex"), "__file__", None) and installed():
        return "used"
    return "installed" if installed() else "not installed"
