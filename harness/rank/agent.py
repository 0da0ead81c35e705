"""torchrun, in a process that ends with the harness: ``python -m harness.rank.agent``.

Takes torchrun's own arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.rank import supervisor


def main(arguments: Sequence[str]) -> None:
    """Run torchrun in a child of this process; returns in that child, once torchrun has ended."""
    supervisor.keep()

    from torch.distributed.run import main as torchrun

    torchrun(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
