"""The modules that packages are imported as."""

from __future__ import annotations

IMPORTS = {
    "ai2-olmo-core": "olmo_core",
    "fla-core": "fla",
    "megatron-core": "megatron.core",
    "mosaicml": "composer",
    "mosaicml-streaming": "streaming",
    "open-clip-torch": "open_clip",
    "pytorch-ignite": "ignite",
}
"""The module of a package, where it is not the package's name with underscores."""


def import_name(package: str) -> str:
    """The module that a pinned package is imported as."""
    return IMPORTS.get(package, package.replace("-", "_"))
