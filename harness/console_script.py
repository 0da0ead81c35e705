"""The command ``distributed-bugs``, which is ``python -m harness``.

It is installed as ``distributed_bugs/__init__.py``. A wheel has the folders harness, scenarios and
configs beside it; an editable install uses those of the checkout.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the command line of this process. A user's folders with our names have no effect."""
    sys.path.insert(0, str(Path(__file__).parent))
    runpy.run_module("harness", run_name="__main__")
