"""torchrun, in a process that ends with the harness: ``python -m harness.trial.agent``.

Takes torchrun's own arguments.
"""

from __future__ import annotations

from harness.trial import orphans

if __name__ == "__main__":
    orphans.keep()

    from torch.distributed.run import main

    main()
