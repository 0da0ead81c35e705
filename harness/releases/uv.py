"""Runs uv: its options, its processes, and its error messages in one line each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.bugs.pins import Stack, here, is_source, source_only
from harness.releases import index
from harness.system import programs
from harness.system.documents import toml_of
from harness.system.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from harness.system.text import without_secrets

_BUILD_SHIMS = Path(__file__).with_name("build_shims")

_running: dict[subprocess.Popen[str], int] = {}
"""The processes of uv, each with the identifier of the thread that waits for it."""

_finding = threading.Lock()


def run(
    arguments: Sequence[str],
    pins: Mapping[str, str],
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    lists: Mapping[str, Iterable[str]] | None = None,
) -> str:
    """The output of uv. ``pins`` are for the error message; raises a HarnessError if uv fails."""
    path = os.pathsep.join(filter(None, [str(_BUILD_SHIMS), os.environ.get("PYTHONPATH")]))
    # DeepSpeed compiles nothing, and adds no commit to its version.
    variables = {"DS_BUILD_OPS": "0", "DS_BUILD_STRING": "", "PYTHONPATH": path}
    process = execute(arguments, stdin, {**variables, **(environment or {})}, lists=lists)
    if process.returncode:
        option = "--python-version"
        python = arguments[arguments.index(option) + 1] if option in arguments else here()[0]
        raise explained(process.stderr, pins, python)
    return process.stdout


def execute(
    arguments: Sequence[str],
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    lists: Mapping[str, Iterable[str]] | None = None,
    limit: float | None = None,
    needs: Mapping[str, Iterable[str]] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run uv for our interpreter, without the configuration of any folder (see ``programs``).

    ``needs`` are packages that uv may choose as source, with what they need: it takes our word
    for it, reads no file of theirs, and builds nothing. See ``takes_needs``.

    ``arguments`` begin with a command: ``pip compile``. ``lists`` are the lines of files, by
    the option that takes the file; they have no name, so that nothing remains if we are killed.
    Raises subprocess.TimeoutExpired after ``limit`` seconds.
    """
    with ExitStack() as files:
        numbers = [files.enter_context(_unnamed(lines)) for lines in (lists or {}).values()]
        paths = (f"/proc/self/fd/{number}" for number in numbers)
        options = [word for pair in zip(lists or (), paths, strict=True) for word in pair]
        if needs is not None:
            numbers.append(
                files.enter_context(_unnamed(_configuration_with(needs, index.public())))
            )
            options += [word for name in needs for word in ("--no-binary", name)]
            options += ["--config-file", f"/proc/self/fd/{numbers[-1]}"]
        else:
            options += _configuration()
        process = files.enter_context(
            subprocess.Popen(
                [binary(), *arguments, "--python", sys.executable, *options],
                **programs.options(**{**index.for_uv(), **(environment or {})}),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=numbers,
            )
        )
        _running[process] = threading.get_ident()
        try:
            output, errors = process.communicate(stdin, limit)
        except BaseException:
            process.kill()
            raise
        finally:
            _running.pop(process, None)
    values = (value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_")))
    addresses = {word for value in values if "@" in value for word in value.split()}
    for word in sorted(addresses, key=len, reverse=True):  # uv prints those that it cannot parse
        errors = errors.replace(word, "***")
    errors = without_secrets(errors)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@contextmanager
def _unnamed(lines: Iterable[str]) -> Iterator[int]:
    """The number of a file in memory with these lines."""
    with os.fdopen(os.memfd_create("lines"), "w") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        yield file.fileno()


def _configuration() -> list[str]:
    """The option that makes uv read the user's own configuration, and never that of a folder, which
    names interpreters and indices, and changes resolutions."""
    if os.environ.get("UV_CONFIG_FILE") or os.environ.get("UV_NO_CONFIG"):
        return []  # the user has chosen
    file = index.uv_configuration()
    return ["--config-file", str(file)] if file else ["--no-config"]


def takes_needs() -> bool:
    """Whether uv can be told what packages need, beside what the user's own configuration says: not
    if that has paths that are relative to its folder, or a list to which nothing can be added."""
    try:
        toml_of("\n".join(_configuration_with({"any": ()}, public_index="")))
        document = toml_of(_user_configuration())
    except (OSError, ValueError):
        return False
    parts = [document, _table(document, "pip"), *_tables(document, "index")]
    places = [place for part in parts for name in PLACES for place in _texts(part.get(name))]
    return all(place.startswith("/") or "://" in place for place in places)


PLACES = ("find-links", "index-url", "extra-index-url", "url")
"""The keys of uv's configuration that name folders and addresses."""


def never_wheels() -> set[str]:
    """The packages that the user's own configuration lets uv build from source always. Raises
    UserError if these are all packages: who asks builds nothing."""
    try:
        document = toml_of(_user_configuration())
    except (OSError, ValueError):
        return set()  # uv says what is wrong
    names = _texts(document.get("no-binary-package")) + _texts(
        _table(document, "pip").get("no-binary")
    )
    if document.get("no-binary") is True or ":all:" in names:
        raise UserError(
            f"{index.uv_configuration()} lets uv build all packages from source, and nothing is "
            "built here: leave no-binary out, or set UV_NO_CONFIG=1"
        )
    return {canonicalize_name(name) for name in names if name != ":none:"}


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}


def _tables(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    parts = document.get(name)
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str)]


def _configuration_with(needs: Mapping[str, Iterable[str]], public_index: str) -> Iterator[str]:
    """The lines of the user's own configuration, and what these packages need.

    A file of the public index never changes, so uv need not ask again whether a file that it has
    is the newest one: a proxy may leave out that the index says so. With 400 such questions a
    resolution took 11 s, and 1 s without.
    """
    yield _user_configuration()
    if not index.configured():
        yield from ("[[index]]", f"url = {json.dumps(public_index)}", "default = true")
        yield 'cache-control = {files = "max-age=31536000, immutable"}'
    for name, requirements in needs.items():
        yield from ("[[dependency-metadata]]", f"name = {json.dumps(name)}")
        yield f"requires-dist = {json.dumps(list(requirements))}"


def _user_configuration() -> str:
    """The text of the configuration that uv would read; empty if there is none."""
    if os.environ.get("UV_NO_CONFIG") and not os.environ.get("UV_CONFIG_FILE"):
        return ""
    file = index.uv_configuration()
    return file.read_text(encoding="utf-8") if file else ""


def binary() -> str:
    """The path of uv.

    Overlays are made in several threads. sysconfig, which finds uv, fills its table without a
    lock, and a second thread would get None. Raises a Fault where uv is not: in a bundle.
    """
    try:
        from uv import find_uv_bin
    except ModuleNotFoundError:
        raise Fault(
            "uv is not installed, and installs what is missing: a bundle has the releases of its "
            "scenarios; make it again with this scenario"
        ) from None
    with _finding:
        return find_uv_bin()


def give_up(threads: Container[int] | None = None) -> None:
    """End the uv that these threads wait for, or every uv; the waiting threads see it fail."""
    for process, thread in list(_running.items()):
        if threads is None or thread in threads:
            process.kill()


def wheels_only(pins: Mapping[str, str]) -> list[str]:
    """Options that build nothing from source except ``source_only``; a checkout has been built.

    Building numpy because a Python has no wheel of it would take an hour and then fail.
    """
    built = {name for name, version in pins.items() if is_source(version)}
    missing = [name for name in source_only() if name not in built]
    sources = [word for name in missing for word in ("--no-binary", name)]
    return ["--only-binary", ":all:", *sources]


def target(stack: Stack) -> list[str]:
    """Options that name the Python and the platform of a stack, if these are not ours."""
    if (stack.python, stack.platform) == here():
        return []
    machine = stack.platform.removeprefix("linux-")
    return ["--python-version", stack.python, "--python-platform", f"{machine}-manylinux_2_28"]


def build_options() -> list[str]:
    """Options for builds from source: DeepSpeed's setup.py imports torch, from this environment."""
    sources = [word for name in source_only() for word in ("--no-build-isolation-package", name)]
    return ["--quiet", *sources]


def left_out(names: Iterable[str]) -> list[str]:
    """Overrides that leave packages out of a resolution: no Python is older than 3."""
    return [f'{Requirement(name)} ; python_version < "3"' for name in sorted(names)]


def explained(stderr: str, pins: Mapping[str, str], python: str) -> HarnessError:
    """The error for what uv wrote when it failed: one line with the cause and the next step."""
    text = " ".join(stderr.split())
    names = " ".join(f"{name}=={version}" for name, version in pins.items())
    if re.search(r"invalid peer certificate|certificate verify failed|UnknownIssuer", text):
        return Fault(
            f"the index's certificate was refused while looking for {names}: if a proxy signs for "
            "it, name the file of the proxy's authority in SSL_CERT_FILE"
        )
    if re.search(r"os error (28|122)\b", text):  # ENOSPC, EDQUOT
        return Fault(f"no room on the disk to install {names}: free some: {_cause(text)}")
    unknown = re.search(r"(\S+) was not found in the package registry", text)
    if unknown and unknown.group(1) in pins:
        return UserError(f"no package '{unknown.group(1)}' in the index")
    if re.search(r"network was disabled|error sending request|Failed to fetch|dns error", text):
        return Fault(
            f"no network and nothing in the cache for {names}: run once with a network, or use a "
            "bundle (python -m harness bundle)"
        )
    gone = re.search(r"no version of (\S+?)==([^\s,]+)", text)
    if gone and pins.get(gone.group(1)) == gone.group(2).rstrip("."):
        return UserError(index.no_release(gone.group(1), pins[gone.group(1)]))
    if re.search(r"does not satisfy Python|no usable wheels|no wheels", text):
        return Unsupported(f"{names} could not be installed for Python {python}: {_cause(text)}")
    return Inconclusive(f"{names} could not be installed: {_cause(text)}")


def _cause(text: str) -> str:
    cause = text.partition("cause: ")[2] or text
    return cause if len(cause) <= 400 else cause[:400] + " ..."
