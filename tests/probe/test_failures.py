"""What the report says about a script that was ended."""

from __future__ import annotations

import runpy
import traceback
from pathlib import Path

import pytest

from harness.rank.probe import launcher
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


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("def main():\n    {}['a']\nmain()\n", "in <module>", "KeyError: 'a'"),
        ("def main(:\n", ", line 1", "SyntaxError: "),
        ("import argparse\nargparse.nothing\n", "in <module>", "AttributeError: "),
    ],
)
def test_a_traceback_begins_with_the_scripts_own_line(
    tmp_path: Path, text: str, first: str, last: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        runpy.run_path(str(script), run_name="__main__")
    error = caught.value.with_traceback(caught.tb.tb_next)  # without this test's own frame
    lines = traceback.format_exception(type(error), error, launcher.of_script(error))
    frames = [line for line in lines if line.startswith("  File")]
    assert f'File "{script}"' in frames[0]
    assert first in frames[0]
    assert lines[-1].startswith(last)


def test_an_error_of_our_own_keeps_its_traceback() -> None:
    with pytest.raises(IndexError) as caught:
        launcher.main([])
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert launcher.of_script(error) is error.__traceback__
