"""Only on the path while an upstream sdist is built; see BUILD in harness/shims/__init__.py.

DeepSpeed 0.8 to 0.10 import themselves in setup.py and stop at pydantic 2. They do without when
there is none, so the builder's own pydantic is hidden from them; nothing that is built uses it.
"""

import sys

sys.modules["pydantic"] = None  # type: ignore[assignment]
