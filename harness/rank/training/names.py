"""The names of parameters. It needs no torch."""

from __future__ import annotations

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What DDP, torch.compile, FSDP1 and checkpointing put into the names of parameters."""


def plain(name: str) -> str:
    """The name of a parameter without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
