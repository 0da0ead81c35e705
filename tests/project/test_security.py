"""SECURITY.md names each command, and each option whose value is run."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator

import pytest

from harness.cli import Arguments, commands, module_of
from harness.system.errors import UserError
from harness.system.files import ROOT

RUN = {
    *("ACTION", "COMMAND", "DETECTOR|KEY=VALUE", "FILE:FUNCTION", "KEY=VALUE", "MODEL", "PATH"),
    *("NAME==VERSION", "NAME=A,B", "NAME=FOLDER@REF", "NAME=VERSION", "NAME=VERSION[,VERSION...]"),
    *("VERSION", "pins.NAME=VERSION", "script"),
}
"""What the user names with these is run, or installed, which may run a part of it."""
READ = {
    *("3.12", "60M", "ARGS", "DAY", "DIR", "FILE", "FOLDER", "FORMAT[:FILE]", "HARM", "N"),
    *("NAME=VALUE", "NAMES", "PACKAGE", "PERCENT", "RUN", "SCENARIO", "SIZE", "TYPE"),
    *("VISIBILITY", "samples"),
}
"""These are files that are read or written, and words."""
TABLE = re.findall(r"^\| (.+?) \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
"""The first column."""


class ParserError(Exception):
    """Has the parser of a command, in place of what it would have done."""


def options(command: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[argparse.Action]:
    def capture(parser: Arguments, *_: object) -> None:
        raise ParserError(parser)

    for name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
        monkeypatch.setattr(Arguments, name, capture)
    try:
        importlib.import_module(module_of(command)).main([])
    except ParserError as error:
        yield from error.args[0]._actions
    except UserError:  # run has no options of this kind
        assert command == "run"
    else:
        raise AssertionError(f"{command} did not parse its words")


@pytest.mark.parametrize("command", commands())
def test_the_table_of_security_has_each_command_and_what_it_runs(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell for cell in TABLE if re.search(rf"`{command}\b(?!-)", cell)]
    assert cells
    for action in options(command, monkeypatch):
        value = action.metavar or (action.dest if not action.option_strings else "")
        if action.metavar or action.dest == "script":
            assert value in RUN | READ, f"{command}: is {value} run, or only read?"
        if value in RUN and action.option_strings:
            word = action.option_strings[-1]
            assert any(word in cell for cell in cells), f"{command} {word}"
