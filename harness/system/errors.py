"""Exit codes, and the errors that end a command with one line. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ExitCode:
    """The exit codes of every command; docs/reference.md documents them."""

    AS_EXPECTED = 0
    NOT_AS_EXPECTED = 1
    USER_MISTAKE = 2
    INCONCLUSIVE = 3
    UNSUPPORTED = 4

    @staticmethod
    def worst(codes: Iterable[int]) -> int:
        """The exit code of several runs: an unexpected result counts more than an inconclusive
        one."""
        badness = (
            ExitCode.AS_EXPECTED,
            ExitCode.UNSUPPORTED,
            ExitCode.INCONCLUSIVE,
            ExitCode.NOT_AS_EXPECTED,
            ExitCode.USER_MISTAKE,
        )
        return max(codes, key=badness.index, default=ExitCode.AS_EXPECTED)


class HarnessError(Exception):
    """An error that ends a command with one line and an exit code, without a traceback."""

    exit_code = ExitCode.INCONCLUSIVE


class UserError(HarnessError):
    """A mistake in the command; the message names the choices."""

    exit_code = ExitCode.USER_MISTAKE


class Unsupported(HarnessError):
    """This machine cannot run something; the message is the reason."""

    exit_code = ExitCode.UNSUPPORTED


class Inconclusive(HarnessError):
    """Something failed, so that nothing is known about the bug."""

    exit_code = ExitCode.INCONCLUSIVE


class Fault(Inconclusive):
    """This machine failed, its disk or its network, and not what was tested."""


MOST = 40
"""Choices that a message lists. Of more, it names the nearest."""
NEAREST = 8


def unknown(
    kind: str, name: str, choices: Iterable[str], *, shown_by: str = "", others: Iterable[str] = ()
) -> str:
    """One line that names what was not found, a guess, and the choices. Of many choices, it names
    those nearest to the name, and the command that shows all: without ``others``, which it does not
    show."""
    names = list(choices)
    choices = [*names, *others]
    guess = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f": did you mean {guess[0]}?" if guess else "."
    if len(choices) <= MOST:
        return f"no {kind} '{name}'{hint} Choices: {', '.join(choices) or 'none'}."
    nearest = ", ".join(difflib.get_close_matches(name, choices, n=NEAREST, cutoff=0))
    ending = f"; '{shown_by}' shows all {len(names)}" if shown_by else f" (of {len(choices)})"
    return f"no {kind} '{name}'{hint} The nearest choices: {nearest}{ending}."
