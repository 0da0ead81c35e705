"""A runnable record of the bugs that silently ruin distributed training."""

import os
import sys


def _leave_working_directory() -> None:
    """Take the working directory off the path where ``python -m`` put it first: a folder of the
    user's called ``scenarios`` or ``configs`` would stand in the place of ours, and a ``torch.py``
    in that of torch. It stays where the harness itself is run from it."""
    absent = sys.flags.isolated or getattr(sys.flags, "safe_path", False)  # -I, -P
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if sys.argv[:1] == ["-m"] and not absent and os.path.realpath(sys.path[0]) != home:
        del sys.path[0]


def _name_python_in_full() -> None:
    """Python's own path is relative where PATH has a relative folder. Our processes, and uv, start
    Python in other folders."""
    if sys.executable:
        sys.executable = os.path.abspath(sys.executable)


_leave_working_directory()
_name_python_in_full()
