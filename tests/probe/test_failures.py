"""What the report says about a script that was ended."""

from __future__ import annotations

from pathlib import Path

from harness.training.probe.runner import where_failed

STACK = """Stack (most recent call first):
  File "/lib/python3.11/selectors.py", line 415 in select
  File "{folder}/data.py", line 7 in fetch
  File "{folder}/train.py", line 30 in <module>
"""


def test_the_innermost_line_of_the_users_own_files_is_named(tmp_path: Path) -> None:
    stack = tmp_path / "stack_rank_1.txt"
    (tmp_path / "stack_rank_0.txt").touch()  # a rank that could not be asked
    assert where_failed(tmp_path, None) == ""
    stack.write_text(STACK.format(folder=tmp_path))
    assert where_failed(tmp_path, tmp_path / "train.py") == "rank 1 was in fetch (data.py, line 7)"
    assert where_failed(tmp_path, None) == "rank 1 was in select (selectors.py, line 415)"
    stack.write_text('  File "/x/torch/utils/cpp_extension.py", line 9 in load\n')
    assert "it was building a C++ extension" in where_failed(tmp_path, tmp_path / "train.py")
