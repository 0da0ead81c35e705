"""A Python interpreter and the packages that it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Distribution(NamedTuple):
    """An installed package."""

    version: str
    folder: str
    """Where it is installed."""


@dataclass(frozen=True)
class Interpreter:
    """A Python, with those packages that were asked for and are installed."""

    executable: str
    version: str
    """Like ``3.11.7``."""
    site: str
    """Its site-packages."""
    packages: Mapping[str, Distribution]
