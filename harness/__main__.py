"""The command line: finds the verb, and turns how it ends into an exit code."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from harness.spec import ExitCode, HarnessError, UserError
from harness.verbs import verbs

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

USAGE = """\
usage: python -m harness VERB ...     (VERB --help for more)

    python -m harness run scenario=bf16_clip

verbs:
{verbs}

exit codes: 0 as expected, 1 not as expected, 2 a mistake in the command, 3 inconclusive,
4 unsupported on this machine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a HarnessError is one line on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _as_interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means to live on
        signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        return _dispatch(arguments)
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted; every process of the run was ended", file=sys.stderr)
        return INTERRUPTED


def _as_interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, verbs()))
        listed = "\n".join(f"  {verb:<{width}}  {about}" for verb, about in verbs().items())
        print(USAGE.format(verbs=listed), end="")
        return ExitCode.AS_EXPECTED if arguments else ExitCode.USER_MISTAKE
    verb, *rest = arguments
    if verb not in verbs():
        from harness.catalog import unknown

        raise UserError(unknown("verb", verb, verbs()))
    code: int = _imported(verb).main(rest)
    return code


def _imported(verb: str):  # type: ignore[no-untyped-def]
    try:
        return importlib.import_module(f"harness.verbs.{verb}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("harness", "scenarios"):
            raise
        raise HarnessError(
            f"{verb} needs the package {missing}, which is not installed here: "
            "python -m pip install --editable ."
        ) from None


if __name__ == "__main__":
    sys.exit(main())
