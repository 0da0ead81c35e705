"""Pins: which upstream releases, as of which day, and what that day resolves them to.

Everything that asks a package index is here, and goes through uv (resolution, installation) or
pip (which releases there are). Nothing here names an index: the user's configuration does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.files import write_whole, writing
from harness.spec import Fault, HarnessError, Inconclusive, Scenario, Unsupported, UserError
from harness.upstream import requirements

BASE = (
    "torch", "triton", "typing-extensions", "filelock", "fsspec", "jinja2", "markupsafe",
    "mpmath", "networkx", "setuptools", "sympy",
)  # fmt: skip
"""torch and its own requirements: the base environment's, never an overlay's."""

SOURCE_ONLY = ("deepspeed",)
"""Published without wheels, so these are built, as the plain Python that they are."""

CONSTRAINTS = {
    "accelerate<0.21": "setuptools<81",  # for pkg_resources
    "deepspeed<0.11": "pydantic<2",
    "deepspeed<0.15": "numpy<2",
    "megatron-core<0.10": "numpy",
}
"""What a release ought to have declared: a bound, as it breaks on what came later, or a need."""

WHEELS_OF = {"megatron-core<0.5": ("3.10",), "megatron-core<0.10": ("3.10", "3.11")}
"""Releases without sources, and the only Pythons that they have wheels for.

Another Python gets the wheel of the last of them, for the plain Python that is in it. What is
compiled, a helper of the datasets, cannot be imported there; nothing here imports it.
"""

GRACE = timedelta(days=21)
"""A release is resolved for the day this much after it appeared: its dependencies had settled."""

FIRST_DAY = {"3.10": "2023-12-15", "3.11": "2023-12-15", "3.12": "2023-12-15"}
LATER_PYTHONS = "2024-12-15"
"""Before these days a Python had no wheels of the usual dependencies (numpy, pydantic)."""

IMPORTS = {"megatron-core": "megatron.core"}
"""The module a distribution is imported as, where it is not its name with underscores."""

_BUILD_SHIMS = Path(__file__).parent / "shims" / "build"


@dataclass(frozen=True)
class Stack:
    """Upstream releases for one Python on one platform, resolved as of one day."""

    pins: Mapping[str, str]
    date: str
    python: str
    """Like ``3.11``."""
    platform: str
    """Like ``linux-x86_64``, as ``sysconfig.get_platform`` says it."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return told(self.pins)


def told(pins: Mapping[str, str]) -> str:
    """Releases as a reader says them: ``deepspeed 0.19.8, megatron-core 0.16.1``."""
    return ", ".join(f"{name} {version}" for name, version in pins.items()) or "torch alone"


def here() -> tuple[str, str]:
    """The Python and the platform that this process runs on, as a Stack names them."""
    return "{}.{}".format(*sys.version_info[:2]), sysconfig.get_platform()


def import_name(distribution: str) -> str:
    """The module that a pinned distribution is imported as."""
    return IMPORTS.get(distribution, distribution.replace("-", "_"))


def complete(scenario: Scenario, given: Mapping[str, str]) -> dict[str, str]:
    """All pins of a scenario: the user's, then those that go with them, then its own defaults."""
    unknown = sorted(set(given) - set(scenario.pins))
    if unknown:
        choices = ", ".join(scenario.pins) or "none"
        raise UserError(f"no pin '{unknown[0]}' in this scenario. Choices: {choices}.")
    pins = {**scenario.pins, **given}
    for companion in scenario.companions:
        if matches(companion.when, pins):
            pins.update({k: v for k, v in companion.pins.items() if k not in given})
    for name, version in pins.items():
        _check_version(name, version)
    return pins


def matches(when: str, pins: Mapping[str, str]) -> bool:
    """Whether a requirement such as ``deepspeed<0.16`` holds of the pins."""
    requirement = Requirement(when)
    version = pins.get(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def covers(scenario: Scenario, pins: Mapping[str, str]) -> bool:
    """Whether these are releases that the scenario can ask."""
    return not scenario.releases or matches(scenario.releases, pins)


def stack(
    scenario: Scenario,
    pins: Mapping[str, str],
    cache: Path,
    *,
    day: str | None = None,
    python: str | None = None,
    platform: str | None = None,
) -> Stack:
    """The stack of these pins: of the given day, else the scenario's, else the release's own."""
    here_python, here_platform = here()
    python, platform = python or here_python, platform or here_platform
    if not pins:  # torch's own bug: nothing to resolve
        return Stack({}, day or scenario.date, python, platform)
    if day is None and pins[scenario.subject] == scenario.pins[scenario.subject]:
        day = scenario.date
    if day is None:
        day = own_day(scenario.subject, pins[scenario.subject], python, cache)
    return Stack(dict(pins), day, python, platform)


def own_day(name: str, version: str, python: str, cache: Path) -> str:
    """The day (ISO) that a release is resolved for: when its dependencies had settled."""
    return settled(released(name, version, cache), python)


def settled(day: str, python: str) -> str:
    """The day (ISO) that what was uploaded on ``day`` is resolved for; today, where that is yet
    to come."""
    own = (date.fromisoformat(day) + GRACE).isoformat()
    return min(max(own, first_day(python)), date.today().isoformat())


def first_day(python: str) -> str:
    """The day (ISO) from which on a Python has wheels of the usual dependencies."""
    return FIRST_DAY.get(python, LATER_PYTHONS)


def released(name: str, version: str, cache: Path) -> str:
    """The day (ISO) a release was uploaded; asked once, then read from the cache."""
    known = release_file(cache, name, version)
    if known.is_file():
        return str(json.loads(known.read_text())["released"])
    asked = Stack({name: version}, date.today().isoformat(), *here())
    asked = next(part for part in _parts(asked) if part.pins)
    lock = _uv(
        [
            "pip", "compile", "-", "--no-deps", "--format", "pylock.toml",
            *_target(asked), *_build_options(),
        ],
        stdin=f"{name}=={version}\n",
        pins={name: version},
    )  # fmt: skip
    days = re.findall(r"upload-time = (\d{4}-\d\d-\d\d)", lock)
    if not days:
        raise Inconclusive(f"the index does not say when {name} {version} was released: name date=")
    with writing(known, "HARNESS_CACHE"):
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, json.dumps({"released": min(days)}) + "\n")
    return min(days)


def release_file(cache: Path, name: str, version: str) -> Path:
    """Where the cache keeps the day of a release."""
    return cache / "releases" / f"{name}-{version}.json"


def versions(name: str, any_python: bool = False, index: Sequence[str] = ()) -> list[str]:
    """All releases of a package that this Python, or any, can install, newest first; no yanked.

    ``index`` are pip's options of where to look, if it is not where the user's configuration says.
    """
    options = [*(["--ignore-requires-python"] if any_python else []), *index]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", *options, name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"Available versions: (.*)", done.stdout)
    return [v.strip() for v in found.group(1).split(",")] if found else []


def lock(stack: Stack) -> str:
    """Resolve a stack: every package with its version and hashes, torch's own left out.

    A part that takes the wheels of another Python is a section of its own.
    """
    own, *foreign = _parts(stack)
    sections = [
        _locked_part(own, bounds(stack.pins)),
        *(_locked_part(part, ()) for part in foreign),
    ]
    return SECTION.join(sections)


def bounds(pins: Mapping[str, str]) -> list[str]:
    """What these releases ought to have declared; see CONSTRAINTS."""
    return [bound for when, bound in CONSTRAINTS.items() if matches(when, pins)]


SECTION = "# the wheels of another Python\n"
"""What separates the sections of a lock."""


def _parts(stack: Stack) -> list[Stack]:
    """The stack, less the releases that have wheels for other Pythons only; then those."""
    foreign: dict[str, dict[str, str]] = {}
    wheels: dict[str, tuple[str, ...]] = {}
    for when, pythons in WHEELS_OF.items():
        if matches(when, stack.pins):
            wheels.setdefault(Requirement(when).name, pythons)  # the first that matches
    for name, pythons in wheels.items():
        if stack.python not in pythons:
            foreign.setdefault(pythons[-1], {})[name] = stack.pins[name]
    taken = {name for pins in foreign.values() for name in pins}
    own = {name: version for name, version in stack.pins.items() if name not in taken}
    others = [replace(stack, pins=pins, python=python) for python, pins in foreign.items()]
    return [replace(stack, pins=own), *others]


def _locked_part(stack: Stack, bounds: Sequence[str]) -> str:
    wanted = [*(f"{name}=={version}" for name, version in stack.pins.items()), *bounds]
    if not wanted:
        return ""
    with _no_base(bounds) as overrides:
        return _uv(
            [
                "pip", "compile", "-", "--generate-hashes", "--no-header", "--no-annotate",
                "--override", overrides, "--exclude-newer", stack.date,
                *_exempt(stack.pins), *_wheels_only(), *_target(stack), *_build_options(),
            ],
            stdin="\n".join(wanted) + "\n",
            pins=stack.pins,
        )  # fmt: skip


def install(lock_file: Path, stack: Stack, site: Path) -> None:
    """Install exactly what a lock says into the folder ``site``; nothing is compiled to bytecode.

    The files are copies, not links into uv's cache: an edit of one must not reach the other.
    """
    own, *foreign = _parts(stack)
    if not foreign:
        _install_part(lock_file, stack, site)
        return
    sections = lock_file.read_text().split(SECTION)
    for place, (part, section) in enumerate(zip([own, *foreign], sections, strict=True)):
        if not section:
            continue
        file = lock_file.with_name(f"lock-{place}.txt")
        file.write_text(section)
        _install_part(file, part, site)
        file.unlink()


def _install_part(lock_file: Path, stack: Stack, site: Path) -> None:
    _uv(
        [
            "pip", "install", "--require-hashes", "-r", str(lock_file), "--target", str(site),
            "--no-deps", "--link-mode", "copy",
            *_wheels_only(), *_target(stack), *_build_options(),
        ],
        pins=stack.pins,
    )  # fmt: skip


def required(file: Path, names: Iterable[str]) -> dict[str, str]:
    """The releases of these packages that a requirements file means today.

    Nothing is built, downloaded or run. Raises UserError for a file that does not name releases,
    and for a range with nothing in it.
    """
    asked = requirements.read(file)
    return {
        name: _meant(name, asked.versions[name], asked.index)
        for name in names
        if name in asked.versions
    }


def _meant(name: str, versions_: SpecifierSet, index: Sequence[str]) -> str:
    """The one release that a requirement names, else the newest that it lets through."""
    exact = [s.version for s in versions_ if s.operator in ("==", "===")]
    if exact and not exact[0].endswith(".*") and versions_.contains(exact[0], prereleases=True):
        return exact[0]
    known = versions(name, index=index)
    if not known:
        raise Fault(f"the package index names no release of {name}: is there a network?")
    found = sorted(versions_.filter(known), key=Version)
    if not found:
        raise UserError(f"no release is {name}{versions_}: they go from {known[-1]} to {known[0]}")
    return found[-1]


def locked(lock_text: str) -> dict[str, str]:
    """The packages, by their canonical names, and the versions that a lock holds."""
    return dict(entries(lock_text))


def entries(lock_text: str) -> list[tuple[str, str]]:
    """Each package that a lock names, and its version, whether hashes or a marker follow."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", lock_text, flags=re.MULTILINE)
    return [(canonicalize_name(name), version) for name, version in found]


def platform_tag(name: str) -> str:
    """The platform of a Stack for a platform as uv names it: x86_64-manylinux_2_28, say."""
    machine, _, system = name.partition("-")
    if not system.startswith(("manylinux", "linux", "unknown-linux")):
        raise UserError(f"no platform '{name}': name a Linux one, such as x86_64-manylinux_2_28")
    return f"linux-{machine}"


def _exempt(pins: Mapping[str, str]) -> list[str]:
    # A pin is exact, so its own day does not matter: a companion may be younger than the subject.
    return [word for name in pins for word in ("--exclude-newer-package", f"{name}=2100-01-01")]


def _wheels_only() -> list[str]:
    # Building numpy from source because a Python has no wheel would take an hour and then fail.
    sources = [word for name in SOURCE_ONLY for word in ("--no-binary", name)]
    return ["--only-binary", ":all:", *sources]


def _target(stack: Stack) -> list[str]:
    if (stack.python, stack.platform) == here():
        return []
    machine = stack.platform.removeprefix("linux-")
    return ["--python-version", stack.python, "--python-platform", f"{machine}-manylinux_2_28"]


def _build_options() -> list[str]:
    # DeepSpeed's setup.py imports torch, so it is built in this environment, not in one of its own.
    sources = [word for name in SOURCE_ONLY for word in ("--no-build-isolation-package", name)]
    return ["--quiet", "--python", sys.executable, *sources]


class _no_base:
    """A file of uv overrides that leaves the base environment's packages out, less those that a
    bound names."""

    def __init__(self, bounds: Sequence[str]) -> None:
        self.names = set(BASE) - {Requirement(bound).name for bound in bounds}

    def __enter__(self) -> str:
        handle, self.path = tempfile.mkstemp(suffix=".txt")
        with os.fdopen(handle, "w") as file:
            file.writelines(f'{name} ; python_version < "3"\n' for name in sorted(self.names))
        return self.path

    def __exit__(self, *_: object) -> None:
        os.unlink(self.path)


def _uv(arguments: Sequence[str], pins: Mapping[str, str], stdin: str = "") -> str:
    from uv import find_uv_bin

    path = os.pathsep.join(filter(None, [str(_BUILD_SHIMS), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, DS_BUILD_OPS="0", PYTHONPATH=path)
    with subprocess.Popen(
        [find_uv_bin(), *arguments], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        _running.add(process)
        try:
            out, complaints = process.communicate(stdin)
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)
    if process.returncode:
        raise _explained(complaints, pins)
    return out


_running: set[subprocess.Popen[str]] = set()
"""What uv is doing just now, in whatever thread."""


def give_up() -> None:
    """End what uv is doing in other threads: who waits for it there is told that it failed."""
    for process in list(_running):
        process.kill()


def _explained(stderr: str, pins: Mapping[str, str]) -> HarnessError:
    text = " ".join(stderr.split())
    what = " ".join(f"{name}=={version}" for name, version in pins.items())
    if re.search(r"invalid peer certificate|certificate verify failed|UnknownIssuer", text):
        return Fault(
            f"the index's certificate was refused while looking for {what}: where a proxy signs "
            "for it, name the file of its authority in SSL_CERT_FILE"
        )
    if re.search(r"os error (28|122)\b", text):  # ENOSPC, EDQUOT
        return Fault(f"no room on the disk to install {what}: free some: {_cause(text)}")
    unknown = re.search(r"(\S+) was not found in the package registry", text)
    if unknown and unknown.group(1) in pins:
        return UserError(f"no package '{unknown.group(1)}' in the index")
    if re.search(r"network was disabled|error sending request|Failed to fetch|dns error", text):
        return Fault(
            f"no network and nothing in the cache for {what}: run once with a network, or carry "
            "a bundle (python -m harness bundle)"
        )
    gone = re.search(r"no version of (\S+?)==([^\s,]+)", text)
    if gone and pins.get(gone.group(1)) == gone.group(2).rstrip("."):
        return UserError(no_release(gone.group(1), pins[gone.group(1)]))
    if re.search(r"does not satisfy Python|no usable wheels|no wheels", text):
        return Unsupported(f"{what} cannot be installed for this Python: {_cause(text)}")
    return Inconclusive(f"{what} could not be installed: {_cause(text)}")


def _cause(text: str) -> str:
    cause = text.partition("cause: ")[2] or text
    return cause if len(cause) <= 400 else cause[:400] + " ..."


def no_release(name: str, version: str) -> str:
    """One line that says a release was never published or was yanked, and names its neighbours."""
    known, wanted = versions(name, any_python=True), Version(version)
    older = next((v for v in known if Version(v) < wanted), None)
    newer = next((v for v in reversed(known) if Version(v) > wanted), None)
    near = " and ".join(v for v in (older, newer) if v) or "unknown"
    span = f"; releases go from {known[-1]} to {known[0]}" if known else ""
    gone = (
        f"{name}=={version} was yanked"
        if _is_yanked(name, version)
        else (f"no release {name}=={version}")
    )
    return f"{gone}: the nearest are {near}{span}"


def _is_yanked(name: str, version: str) -> bool:
    from uv import find_uv_bin

    done = subprocess.run(
        [find_uv_bin(), "pip", "compile", "-", "--no-deps", "--python", sys.executable],
        input=f"{name}=={version}\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "is yanked" in done.stderr


def _check_version(name: str, version: str) -> None:
    try:
        Version(version)
    except InvalidVersion:
        raise UserError(f"pins.{name}={version} is no version: write one like 0.15.4") from None
