"""Output on a terminal, or as plain lines if the output is not a terminal."""

from __future__ import annotations

import io
import math
import sys
import time
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.system.text import harmless, plain, silence

TALLY_EVERY = 60.0
"""Seconds between two lines of a tally that is not live."""


class Terminal(Console):
    """A console that escapes control characters, and goes on if its reader has left."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; control characters in strings are printed as escapes, and commands for a CI
        service as text."""
        strings = (harmless(plain(o)) if isinstance(o, str) else o for o in objects)
        super().print(*strings, **options)

    def print_format(self, text: str) -> None:
        """Print what a program reads: JSON, Markdown, or the very commands of a CI service."""
        if text.startswith(("{", "[")):  # only its strings have a ##, which may be a command
            text = text.replace("##", r"#\u0023")
        super().print(plain(text), end="")

    def on_broken_pipe(self) -> None:
        """Print nothing more: a run whose reader has left (``| head``) still writes its verdict."""
        silence(sys.stdout)


def terminal(file: TextIO | None = None) -> Terminal:
    """The console for reports: coloured and as wide as the terminal, or plain long lines.

    ``FORCE_COLOR``, which CI and notebooks set, colours what goes to no terminal. Text that is kept
    in memory stays plain, and a line is live on a terminal only.
    """
    live = file is None and sys.stdout.isatty()
    target = sys.stdout if file is None else file
    return Terminal(
        file=file,
        force_terminal=False if isinstance(file, io.StringIO) else None,
        force_interactive=None if target.isatty() else False,
        highlight=False,
        soft_wrap=True,
        width=None if live else 10_000,
        markup=False,
        emoji=False,
    )


class Progress:
    """Shows the current activity: a live line on a terminal, otherwise one line for each activity.

    Variants may run at the same time, so activities alternate.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._current = ""
        self._printed: set[str] = set()
        self._since = time.monotonic()
        self._tallied = -math.inf
        self._spinner = Spinner("dots")
        self._done: list[Text] = []
        self._live = Live(self._spinner, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Progress:
        if self.console.is_interactive:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_interactive:
            self._live.stop()

    def say(self, activity: str, detail: str = "") -> None:
        """Show an activity. ``detail``, such as a step, appears only in the live line."""
        if activity != self._current:
            self._current, self._since = activity, time.monotonic()
            if not self.console.is_interactive and activity not in self._printed:
                self._printed.add(activity)
                self.console.print(f"... {activity}")
        seconds = time.monotonic() - self._since
        self._spinner.update(text=Text(plain(f"{activity}  {detail}  {seconds:.0f} s")))

    def show(self, summary: str) -> None:
        """Show a result of the activity; on a terminal, until the end of it."""
        if not self.console.is_interactive:
            self.console.print(f"... {summary}")
        self._done.append(Text(plain(summary)))
        self._live.update(Group(*self._done, self._spinner))

    def tally(self, state: str) -> None:
        """Show how far something is, which changes often: a line that is not live comes at most
        once a minute."""
        if not self.console.is_interactive and time.monotonic() - self._tallied >= TALLY_EVERY:
            self._tallied = time.monotonic()
            self.console.print(f"... {state}")
        self._spinner.update(text=Text(plain(state)))


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table. Its cells are text, never markup."""
    grid = Table(title=Text(plain(title)), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    return grid
