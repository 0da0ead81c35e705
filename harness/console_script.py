"""The command ``distributed-bugs``, which is ``python -m harness``, and ``guard`` for scripts.

It is installed as ``distributed_bugs/__init__.py``. A wheel has the folders harness, scenarios and
configs beside it; an editable install uses those of the checkout. A training script may import it:
so it imports nothing, and each function what it needs.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process. A user's folders with our names have no effect."""
    import runpy
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent))
    runpy.run_module("harness", run_name="__main__")


def guard(
    budget: float = 1.0,
    every: int = 0,
    checks: tuple[str, ...] = (),
    on_alarm: str = "warn",
    out: str = "",
    quiet: bool = False,
) -> None:
    """Watch what this process trains from now on, as the command ``guard`` does.

    Call it on every rank, before the first step. Under the command, its options hold. The arguments
    are the same options; ``out`` is a folder, which is made if it does not exist.
    """
    import os
    import sys

    if "distributed_bugs_guard.rank.guard" in sys.modules:
        return
    try:
        from distributed_bugs.harness.rank.guard import start
        from distributed_bugs.harness.rank.guard.settings import VARIABLE, Settings, report_in
    except ModuleNotFoundError:  # an editable install
        from harness.rank.guard import start
        from harness.rank.guard.settings import VARIABLE, Settings, report_in
    if VARIABLE in os.environ:  # the command did not reach this Python, as under python -I
        report_in("python")
        start()
        return
    if out:
        os.makedirs(out, exist_ok=True)
    start(Settings(budget, every, list(checks), on_alarm, out and os.path.abspath(out), quiet))
