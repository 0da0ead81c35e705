"""What a shell completes: names of commands, scenarios and options, through argcomplete.

eval "$(register-python-argcomplete distributed-bugs)"
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
from collections.abc import Iterable
from typing import Any

from harness.bugs import catalog
from harness.cli import commands, module_of
from harness.run.run_config import ALL

BY_NAME = ("lock", "pages", "show", "signatures")
"""Commands that take names of scenarios; the others take ``scenario=NAME``."""

BY_OVERRIDE = ("admit", "bisect", "matrix", "run", "watch")
OVERRIDE = "scenario="


def complete() -> None:
    """Answer a shell that completes a word, and exit."""
    import argcomplete

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("command", choices=sorted(commands()))
    for option in _options(*os.environ.get("COMP_LINE", "").split()[1:2]):
        parser.add_argument(option, action="store_true")
    words: Any = parser.add_argument("words", nargs="*")
    words.completer = _words
    argcomplete.autocomplete(parser)


def _words(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """What may follow a command: names of scenarios where it takes some, otherwise files."""
    from argcomplete.completers import FilesCompleter

    if parsed_args.command in BY_NAME:
        return catalog.names()
    if parsed_args.command not in BY_OVERRIDE:
        files: Iterable[str] = FilesCompleter()(prefix)
        return files
    if not prefix.startswith(OVERRIDE):
        return [OVERRIDE]
    return [OVERRIDE + name for name in (ALL, *catalog.names())]


def _options(command: str = "") -> list[str]:
    """The options of a command, from its help."""
    if command not in commands():
        return []
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        importlib.import_module(module_of(command)).main(["--help"])
    return sorted(set(re.findall(r"(?<=\s)--[a-z][a-z-]+", text.getvalue())))
