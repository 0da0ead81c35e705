"""torchrun, in a process that ends with the harness: ``python -m harness.trial.agent``.

Takes torchrun's own arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness.trial import supervisor


def main(arguments: Sequence[str]) -> None:
    """Return in a child of this process, when torchrun has ended in it."""
    supervisor.keep()

    from torch.distributed.run import main as torchrun

    torchrun(list(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
