"""Why a run had no certain result: the reasons of inconclusive cells, in a few plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping

OTHER = "the release raises some other error"

KINDS: Mapping[str, str] = {
    "the processes lost their connection, were killed, or did not end": (
        r"SIG[A-Z]+|exit code -|gloo/transport|Connection|file descriptor|deadline"
    ),
    "the training shows another fault than the documented one": r"^not the documented symptom",
    "the values differ between ranks where the scenario expects the same": r"differs between ranks",
    "the releases cannot be installed together": r"could not be installed",
    "the release takes another optimizer of DeepSpeed than the bug needs": (
        r"another optimizer|FP16_UnfusedOptimizer"
    ),
    "the release fails at a newer dependency, Python or torch": (
        r"Descriptors cannot be created|module 'collections'|torchvision::|Failed to import"
        r"|is not defined|PyTorch version|unknown parameter type|Transformer Engine version"
    ),
    "the packages of the run do not fit together": (
        r"unexpected keyword|positional arguments|requires `accelerate"
    ),
    "the release lacks what the scenario uses": r"ImportError|ModuleNotFoundError|AttributeError",
    "the release refuses what sets off the bug": r"NotImplementedError|ValueError|not implemented",
}
"""What is the matter, and a pattern of the reasons for it; the first that fits counts."""


def kind(reason: str) -> str:
    """What is the matter with a run, by the recorded reason."""
    return next((words for words, signs in KINDS.items() if re.search(signs, reason)), OTHER)
