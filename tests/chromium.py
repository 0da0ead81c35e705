"""The Chromium that the browser tests use: one that is installed. Nothing installs one here."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What it may be called. Playwright's own browsers come from a place that not all can reach."""

MISSING = "no Chromium: install one, for example with 'sudo apt-get install chromium'"


def executable() -> str | None:
    """The path of an installed Chromium; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)
