"""A runnable record of the bugs that silently ruin distributed training."""

import os
import sys


def _leave_working_directory() -> None:
    """Remove the working directory, which ``python -m`` put first on the path: a user's folder
    ``scenarios`` or ``configs`` would replace ours, and a ``torch.py`` would replace torch. It
    stays if the harness itself is in it."""
    absent = sys.flags.isolated or getattr(sys.flags, "safe_path", False)  # -I, -P
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if sys.argv[:1] == ["-m"] and not absent and os.path.realpath(sys.path[0]) != home:
        del sys.path[0]


def _name_python_in_full() -> None:
    """Make Python's path absolute: PATH may have a relative folder, and our processes and uv start
    Python in other folders."""
    if sys.executable:
        sys.executable = os.path.abspath(sys.executable)


_leave_working_directory()
_name_python_in_full()
