"""The command ``distributed-bugs``, which is ``python -m harness``, and what scripts import.

It is installed as ``distributed_bugs/__init__.py``. A wheel has the folders harness, scenarios and
configs beside it; an editable install uses those of the checkout. A training script may import it:
so it imports nothing, and each function what it needs. docs/python.md describes it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime
    import os
    from collections.abc import Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from distributed_bugs.harness.python.commands import Error
    from distributed_bugs.harness.python.lightning_callback import (
        LightningGuardCallback as LightningGuardCallback,  # exported, though not in __all__
    )
    from distributed_bugs.harness.python.results import (
        Broken,
        Bug,
        CheckResult,
        Layout,
        Place,
        ProbeResult,
    )
    from distributed_bugs.harness.python.trainer_callback import GuardCallback as GuardCallback

__all__ = (
    "Broken",
    "Bug",
    "CheckResult",
    "Error",
    "Layout",
    "Place",
    "ProbeResult",
    "check",
    "guard",
    "main",
    "probe",
)
"""Without the callbacks: each needs a package that may be missing."""

PLACES = {
    "Broken": "results",
    "Bug": "results",
    "CheckResult": "results",
    "Error": "commands",
    "GuardCallback": "trainer_callback",
    "Layout": "results",
    "LightningGuardCallback": "lightning_callback",
    "Place": "results",
    "ProbeResult": "results",
    "pytest_plugin": "",
}
"""By name, the module of what is imported when it is used; a module has none."""


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _module(f"python.{PLACES[name] or name}")
    return getattr(module, name) if PLACES[name] else module


def _module(name: str) -> ModuleType:
    """A module of the harness, from the folder beside this file or from a checkout."""
    from importlib import import_module
    from importlib.util import find_spec

    package = f"{__package__}.harness"
    return import_module(f"{package if find_spec(package) else 'harness'}.{name}")


def main() -> None:
    """Run the command line of this process. A user's folders with our names have no effect."""
    import runpy
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent))
    runpy.run_module("harness", run_name="__main__")


def check(
    packages_or_file: str | os.PathLike[str] | Mapping[str, str] | Sequence[str] | None = None,
    *,
    python: str | os.PathLike[str] | None = None,
    as_of: str | datetime.date | None = None,
    deepspeed: str | os.PathLike[str] | None = None,
    training_args: str | os.PathLike[str] | None = None,
    accelerate: str | os.PathLike[str] | None = None,
    accepted: str | os.PathLike[str] | None = None,
    models: Sequence[str] = (),
    scenarios: Sequence[str] = (),
) -> CheckResult:
    """The bugs that packages have.

    ``packages_or_file`` is a list of requirements, ``["transformers==5.2.0", "torch>=2.6"]``, which
    count as the lines of a requirements file: other packages may be installed, too. Or it is a
    dict, ``{"transformers": "5.2.0", "accelerate": "1.13.0"}``: if each version in it is exact, it
    counts as all that is installed, and a bug that needs another package does not apply. Or it is
    the path of a file or of a project's folder. Without it, the packages of this Python count.

    The other arguments are the options of the command ``check``. It runs in a process of its own.
    Raises Error, whose message is one line.
    """
    return _module("python.commands").check(
        packages_or_file,
        python=python,
        as_of=as_of,
        deepspeed=deepspeed,
        training_args=training_args,
        accelerate=accelerate,
        accepted=accepted,
        models=models,
        scenarios=scenarios,
    )


def probe(*words: str | os.PathLike[str]) -> ProbeResult:
    """Whether a script trains the same in several layouts: ``probe("train.py", "--batch-size",
    "{rows}", "--accum", "{k}")``.

    The words are those of the command ``probe``. It runs in a process of its own, in this working
    folder. Raises Error, whose message is one line, also if the reference has no answer.
    """
    return _module("python.commands").probe(*words)


def guard(
    budget: float = 1.0,
    every: int = 0,
    checks: str | Sequence[str] = (),
    on_alarm: str = "warn",
    out: str = "",
    quiet: bool = False,
) -> None:
    """Watch what this process trains from now on, as the command ``guard`` does.

    Call it on every rank, before the first step. Under the command, its options hold. The
    arguments are the same options: ``checks`` are names, or one text with commas between them, and
    ``out`` is a folder, which is made if it does not exist.
    Raises ValueError for an option or a value that it does not know.
    """
    import os
    import sys

    if "distributed_bugs_guard.rank.guard" in sys.modules:
        return
    start = _module("rank.guard").start
    settings = _module("rank.guard.settings")
    if settings.VARIABLE in os.environ:  # the command did not reach this Python, as under python -I
        settings.report_in("python")
        start()
        return
    out = out and os.path.abspath(out)
    words = checks.split(",") if isinstance(checks, str) else map(str, checks or ())
    names = [word.strip() for word in words if word.strip()]
    requested = settings.Settings(budget, every, names, on_alarm, out, quiet)
    requested.refuse_mistakes()
    if out:
        os.makedirs(out, exist_ok=True)
    start(requested)
