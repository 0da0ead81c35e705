"""Were the weights restored by a load with DeepSpeed? ``_restored`` saves and loads them.

A rank records ``loaded`` with the number of weights that are ``differing`` from the saved ones.
"""

from __future__ import annotations

from harness.bugs import api


def weights_lost(records: api.Records) -> api.Finding | None:
    """The finding that weights were not restored; this is not a documented symptom."""
    count = records.of("loaded")[0]["differing"]
    text = f"{count} weights differ from those saved"
    return api.Finding(text, documented=False) if count else None


def weights_differ(records: api.Records) -> dict[str, bool]:
    """The weights are loaded."""
    return {"a weight differs from those saved": weights_lost(records) is not None}
