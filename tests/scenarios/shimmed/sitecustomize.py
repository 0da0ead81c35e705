"""Installs the shims named in SHIMS when Python starts, also in the processes that a script starts.

The scripts for maintainers use upstream alone. On this machine some releases need shims.
"""

import os
import sys

sys.path.append(os.environ["HARNESS"])

from harness.rank import shims

shims.install(os.environ["SHIMS"].split())
