"""Python imports this file when it starts, as guard puts its folder first on PYTHONPATH.

It starts guard right after ``torch`` was imported, in whatever process that happens, and imports
nothing before. It also runs the sitecustomize that it hides: the user's, or the distribution's.
Python 3.9; standard library only.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))


class AfterTorch:
    """A finder of modules that lets torch's loader start guard when it has imported torch. Until
    then it stays: many packages only ask whether torch can be found."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                break
        else:
            return None
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return spec

        def execute_and_start(module: Any) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            start()

        spec.loader.exec_module = execute_and_start  # of this loader alone, whose type stays
        return spec


def start() -> None:
    """Start guard. Whatever fails, the training goes on without it."""
    sys.path.append(FOLDER)
    try:
        from distributed_bugs_guard.rank.guard import start as start_guard

        start_guard()
    except Exception as error:
        sys.stderr.write(f"guard: this process is not watched: {error!r}\n")
    finally:
        sys.path.remove(FOLDER)


def report_in() -> None:
    """Tell the command that it reached a Python."""
    settings = os.environ["PYTHON_DISTRIBUTED_BUGS_GUARD"]
    try:
        with open(os.path.join(os.path.dirname(settings), "python"), "ab"):
            pass
    except OSError:  # guard has ended, or this is another machine
        pass


def run_hidden() -> None:
    """Run the next sitecustomize of the path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    paths = [path for path in sys.path if os.path.abspath(path or ".") != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "PYTHON_DISTRIBUTED_BUGS_GUARD" in os.environ and "torch" not in sys.modules:
    report_in()
    sys.meta_path.insert(0, AfterTorch())
try:
    run_hidden()
except Exception as error:  # Python itself prints it and goes on, too
    sys.stderr.write(f"guard: another sitecustomize failed: {error!r}\n")
