"""On the path only while uv builds an upstream's source distribution; see ``harness.releases.uv``.

DeepSpeed 0.8 to 0.10 import themselves in setup.py and fail with pydantic 2. They work without
pydantic, so it is hidden from them. Nothing that is built uses it.
"""

import sys

sys.modules["pydantic"] = None  # type: ignore[assignment]
