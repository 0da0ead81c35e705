"""Finds the installed Chromium that the browser tests use; the tests do not install one."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Its possible names. Playwright's own browsers come from a server that not all can reach."""

MISSING = "no Chromium: install one, for example with 'sudo apt-get install chromium'"


def executable() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)
