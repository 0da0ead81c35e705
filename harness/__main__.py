"""The command line: verbs and exit codes.

``run`` hands its arguments to Hydra untouched; the other verbs are small and parsed here. Modules
that take long to import are imported by the verb that needs them.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from harness.spec import ExitCode, HarnessError, UserError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

VERBS = """\
verbs:
  run     run a scenario's variants:  run scenario=bf16_clip launch=gpu seed=3  (run --help)
  list    the scenarios there are
  show    one scenario: its story, variants, pins, shims, and the defect as a diff
  matrix  which releases have the bug:  matrix scenario=NAME pins.PACKAGE=4.34:5.23:minor
  bisect  between which releases the answer flips, asking few
  check   is the environment that you have affected?  check [-r requirements.txt]
  admit   may a scenario be in the catalogue? run often enough to say
  new     write a scenario module that runs and is honest about being unfinished
  grade   the verdict of a stored run folder, without a launch
  bundle  a folder with all that a box without a network needs
  clean   what the caches hold, and free it

exit codes: 0 as expected, 1 not as expected, 2 a mistake in the command, 3 inconclusive,
4 unsupported on this machine
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


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
        print(f"usage: python -m harness VERB ...\n\n{VERBS}", end="")
        return ExitCode.AS_EXPECTED if arguments else ExitCode.USER_MISTAKE
    verb, *rest = arguments
    if verb not in ACTIONS:
        from harness.catalog import unknown

        raise UserError(unknown("verb", verb, ACTIONS))
    return ACTIONS[verb](rest)


def _run(arguments: list[str]) -> int:
    from harness import config
    from harness.suite import noted_exit_codes, run_and_note

    with noted_exit_codes() as codes:
        config.run(arguments, run_and_note)
    return ExitCode.worst(codes)


def _list(arguments: list[str]) -> int:
    parser = _Parser(prog="python -m harness list", description="The scenarios there are.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    from harness import show

    show.print_list(as_json=options.json)
    return ExitCode.AS_EXPECTED


def _show(arguments: list[str]) -> int:
    parser = _Parser(prog="python -m harness show", description="All about one scenario.")
    parser.add_argument("scenario")
    parser.add_argument(
        "pins",
        nargs="*",
        metavar="pins.NAME=VERSION",
        help="other releases to show the defect on",
    )
    options = parser.parse_args(arguments)
    from harness import show

    show.print_scenario(options.scenario, _pins(options.pins))
    return ExitCode.AS_EXPECTED


def _matrix(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness matrix",
        description="Ask each of several releases, as published, whether it has a scenario's bug.",
        epilog="Releases: 4.34:5.23 (a range, both ends included), all, minor (the last patch of "
        "each minor release), 4.34:5.23:minor, or a list of these; two packages make a grid.",
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    parser.add_argument("--again", action="store_true", help="ask anew what is stored")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the cells as CSV")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cells as JSON")
    parser.add_argument(
        "--record", action="store_true", help="keep the answers in scenarios/affected.json"
    )
    options = parser.parse_intermixed_args(arguments)
    from harness import matrix

    return matrix.matrix(
        options.overrides,
        again=options.again,
        record=options.record,
        csv_file=options.csv,
        json_file=options.json,
    )


def _bisect(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness bisect",
        description="Find the releases between which a scenario's answer flips, asking few.",
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    parser.add_argument("--again", action="store_true", help="ask anew what is stored")
    parser.add_argument(
        "--apart", type=int, metavar="N",
        help="first ask every N-th release (default: about the square root of their number)",
    )  # fmt: skip
    options = parser.parse_intermixed_args(arguments)
    from harness import bisect

    return bisect.bisect(options.overrides, again=options.again, apart=options.apart)


def _check(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness check",
        description="Say for each scenario whether what is installed here is affected.",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as to run")
    parser.add_argument(
        "-r", "--requirements", type=Path, metavar="FILE", help="ask of these requirements instead"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 if one is unknown")
    options = parser.parse_intermixed_args(arguments)
    from harness import check

    return check.check(options.overrides, options.requirements, strict=options.strict)


def _admit(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness admit",
        description="Run a scenario often enough to say whether it may be in the catalogue.",
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    options = parser.parse_intermixed_args(arguments)
    from harness import admit

    return admit.admit(options.overrides)


def _new(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness new",
        description="Write a scenario module that runs, and says that it is not finished.",
    )
    parser.add_argument("name", help="like bf16_clip")
    parser.add_argument(
        "--pin", action="append", default=[], metavar="NAME==VERSION",
        help="an upstream release; the first is the one whose bug it is; repeatable",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from harness import new

    new.new(options.name, options.pin)
    return ExitCode.AS_EXPECTED


def _grade(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness grade", description="Grade a stored run again, from its records."
    )
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    options = parser.parse_args(arguments)
    from harness import show

    return show.print_grade(options.run, as_json=options.json)


def _bundle(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness bundle",
        description="A folder with all that a box without a network needs to run scenarios.",
    )
    parser.add_argument("scenario", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--python", metavar="3.12", help="the box's Python (default: this one)")
    parser.add_argument(
        "--platform", default="x86_64-manylinux_2_28", help="the box's platform, as uv names it"
    )
    parser.add_argument(
        "--pins", action="append", default=[], metavar="NAME=VERSION[,VERSION...]",
        help="other releases to carry than the scenario's own; repeatable",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from harness import bundle

    bundle.make(
        options.scenario, options.out, options.python, options.platform, _releases(options.pins)
    )
    return ExitCode.AS_EXPECTED


def _clean(arguments: list[str]) -> int:
    parser = _Parser(
        prog="python -m harness clean", description="Show what the caches hold, and free it."
    )
    parser.add_argument("overlay", nargs="*", help="the keys to free (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="only show")
    options = parser.parse_args(arguments)
    from harness import clean

    clean.clean(options.overlay, dry_run=options.dry_run)
    return ExitCode.AS_EXPECTED


def _pins(given: Sequence[str]) -> dict[str, str]:
    pins = {}
    for word in given:
        name, sign, version = word.removeprefix("pins.").partition("=")
        if not sign or not name or not version:
            raise UserError(f"'{word}' is no pin: write one like pins.deepspeed=0.15.4")
        pins[name] = version
    return pins


def _releases(given: Sequence[str]) -> dict[str, list[str]]:
    return {name: versions.split(",") for name, versions in _pins(given).items()}


ACTIONS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "list": _list,
    "show": _show,
    "matrix": _matrix,
    "bisect": _bisect,
    "check": _check,
    "admit": _admit,
    "new": _new,
    "grade": _grade,
    "bundle": _bundle,
    "clean": _clean,
}

if __name__ == "__main__":
    sys.exit(main())
