"""Pins: which upstream releases, as of which day, and what that day resolves them to.

What needs a release's files is here, and goes through uv: resolution, installation, the day of a
release. Which releases there are, ``index`` says. Nothing here names an index: the user's
configuration does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.errors import Fault, HarnessError, Inconclusive, Unsupported, UserError
from harness.files import write_whole, writing
from harness.spec import Scenario
from harness.text import warn_once
from harness.upstream import index, locks, requirements
from harness.upstream.index import Release
from harness.upstream.requirements import Requirements

BASE = (
    "torch",
    "triton",
    "typing-extensions",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "setuptools",
    "sympy",
)
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
    lock: str = ""
    """The committed lock of these pins, see ``locks``; empty where they are resolved now."""

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
    return {name: _version(name, version) for name, version in pins.items()}


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
    """The stack of these pins, with the versions of their lock file where the scenario has one.

    Otherwise the dependencies are those of the given day, or of the day that ``day_of`` says.
    """
    here_python, here_platform = here()
    python, platform = python or here_python, platform or here_platform
    if not pins:  # torch's own bug: nothing to resolve
        return Stack({}, day or date.today().isoformat(), python, platform)
    if day is None and platform == locks.PLATFORM:
        lock = locks.find(scenario.locks, pins)
        if lock and python in lock.pythons:
            text = locks.lines(lock.versions(python))
            return Stack(dict(pins), lock.date, python, platform, text)
    return Stack(dict(pins), day or day_of(scenario, pins, python, cache), python, platform)


def day_of(scenario: Scenario, pins: Mapping[str, str], python: str, cache: Path) -> str:
    """The day (ISO) that pins are resolved for: that of their lock file where there is one,
    otherwise the one of the subject's release."""
    if locked := locked_day(scenario, pins):
        return locked
    return own_day(scenario.subject, pins[scenario.subject], python, cache)


def locked_day(scenario: Scenario, pins: Mapping[str, str]) -> str | None:
    """The day (ISO) that the lock file of these pins was resolved for; None without one."""
    lock = locks.find(scenario.locks, pins)
    return lock.date if lock else None


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
    if day := _kept(known):
        return day
    asked = Stack({name: version}, date.today().isoformat(), *here())
    asked = next(part for part in _parts(asked) if part.pins)
    with index.waiting(f"the package index to say when {name} {version} was released"):
        lock = _uv(
            [
                "pip",
                "compile",
                "-",
                "--no-deps",
                "--format",
                "pylock.toml",
                *_target(asked),
                *_build_options(),
            ],
            stdin=f"{name}=={version}\n",
            pins={name: version},
        )
    own = re.search(r'^version = "(.+)"$', lock, flags=re.MULTILINE)
    if own and own[1] != version:  # nothing that is compared with what a rank loads would agree
        raise UserError(
            f"pins.{name}={version}: write it as its release is spelt, pins.{name}={own[1]}"
        )
    days = re.findall(r"upload-time = (\d{4}-\d\d-\d\d)", lock)
    if not days:
        raise Inconclusive(f"the index does not say when {name} {version} was released: name date=")
    with writing(known, "HARNESS_CACHE"):
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, json.dumps({"released": min(days)}) + "\n")
    return min(days)


def _kept(file: Path) -> str | None:
    """The day that a file of the cache holds; None where there is none that can be believed."""
    try:
        day = json.loads(file.read_text(encoding="utf-8"))["released"]
        if date.fromisoformat(day).isoformat() == day:
            return str(day)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    warn_once(f"{file} was damaged or edited: the index is asked again")
    return None


def release_file(cache: Path, name: str, version: str) -> Path:
    """Where the cache keeps the day of a release."""
    return cache / "releases" / f"{name}-{version}.json"


def lock(stack: Stack) -> str:
    """The lock of a stack, ``name==version`` lines without torch: committed, or resolved now.

    A release that takes the wheel of another Python comes without dependencies.
    """
    if stack.lock:
        return stack.lock
    own, *foreign = _parts(stack)
    found = locks.versions(_resolved(own, bounds(stack.pins)))
    return locks.lines({**found, **{n: v for part in foreign for n, v in part.pins.items()}})


def bounds(pins: Mapping[str, str]) -> list[str]:
    """What these releases ought to have declared; see CONSTRAINTS."""
    return [bound for when, bound in CONSTRAINTS.items() if matches(when, pins)]


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


def _resolved(stack: Stack, bounds: Sequence[str]) -> str:
    wanted = [*(f"{name}=={version}" for name, version in stack.pins.items()), *bounds]
    if not wanted:
        return ""
    with _no_base(bounds) as overrides:
        return _uv(
            [
                "pip",
                "compile",
                "-",
                "--no-header",
                "--no-annotate",
                "--override",
                overrides,
                "--exclude-newer",
                stack.date,
                *_exempt(stack.pins),
                *_wheels_only(),
                *_target(stack),
                *_build_options(),
            ],
            stdin="\n".join(wanted) + "\n",
            pins=stack.pins,
        )


def install(lock: str, stack: Stack, site: Path) -> None:
    """Install exactly what a lock names into the folder ``site``; nothing is compiled to bytecode.

    The files are copies, not links into uv's cache: an edit of one must not reach the other.
    """
    own, *foreign = _parts(stack)
    theirs = {name: version for part in foreign for name, version in part.pins.items()}
    ours = {name: version for name, version in locks.versions(lock).items() if name not in theirs}
    for part, versions in ((own, ours), *((part, part.pins) for part in foreign)):
        if versions:
            _install_part(versions, part, site)


def _install_part(versions: Mapping[str, str], stack: Stack, site: Path) -> None:
    _uv(
        [
            "pip",
            "install",
            "-r",
            "-",
            "--target",
            str(site),
            "--no-deps",
            "--link-mode",
            "copy",
            *_wheels_only(),
            *_target(stack),
            *_build_options(),
        ],
        stdin=locks.lines(versions),
        pins=stack.pins,
    )


def required(file: Path, names: Iterable[str]) -> dict[str, str]:
    """The releases of these packages that a requirements file means today.

    Nothing is built, downloaded or run. Raises UserError for a file that does not name releases,
    and for a range with nothing in it.
    """
    asked = requirements.read(file)
    return {
        name: _meant(name, asked.versions[name], asked) for name in names if name in asked.versions
    }


def _meant(name: str, versions: SpecifierSet, asked: Requirements) -> str:
    """The one release that a requirement names, else the newest that it lets through."""
    exact = [s.version for s in versions if s.operator in ("==", "===")]
    if exact and not exact[0].endswith(".*") and versions.contains(exact[0], prereleases=True):
        return exact[0]
    if asked.no_index:
        raise UserError(
            f"--no-index leaves nobody to ask which releases of {name} there are: name one, as "
            f"{name}==1.2.3"
        )
    if asked.links:
        warn_once("nothing is looked up in --find-links: a range means the index's newest release")
    known = [
        release.version
        for release in index.releases(name, asked.indices)
        if release.final and release.installable and not release.yanked
    ]
    if not known:
        raise Fault(f"the package index names no release of {name} for this Python")
    found = list(versions.filter(known))
    if not found:
        raise UserError(f"no release is {name}{versions}: they go from {known[0]} to {known[-1]}")
    return found[-1]


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
    path = os.pathsep.join(filter(None, [str(_BUILD_SHIMS), os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, DS_BUILD_OPS="0", PYTHONPATH=path)
    with subprocess.Popen(
        [uv_binary(), *arguments],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        _running[process] = threading.get_ident()
        try:
            out, complaints = process.communicate(stdin)
        except BaseException:
            process.kill()
            raise
        finally:
            _running.pop(process, None)
    if process.returncode:
        raise _explained(complaints, pins)
    return out


_finding = threading.Lock()


def uv_binary() -> str:
    """The path of uv.

    Overlays are made in threads. sysconfig, which uv needs for it, fills its table without a lock,
    and a second thread got None.
    """
    from uv import find_uv_bin

    with _finding:
        return find_uv_bin()


_running: dict[subprocess.Popen[str], int] = {}
"""The processes of uv, each with the identifier of the thread that waits for it."""


def give_up(threads: Container[int] | None = None) -> None:
    """End the uv that these threads wait for, or all of it: a thread that waits sees it fail."""
    for process, thread in list(_running.items()):
        if threads is None or thread in threads:
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
        python, _ = here()
        return Unsupported(f"{what} could not be installed for Python {python}: {_cause(text)}")
    return Inconclusive(f"{what} could not be installed: {_cause(text)}")


def _cause(text: str) -> str:
    cause = text.partition("cause: ")[2] or text
    return cause if len(cause) <= 400 else cause[:400] + " ..."


def no_release(name: str, version: str) -> str:
    """One line that says a release was never published or was yanked, and names its neighbours."""
    wanted, found = Version(version), _published(name)
    known = [Version(release.version) for release in found if not release.yanked]
    near = [*[v for v in known if v < wanted][-1:], *[v for v in known if v > wanted][:1]]
    span = f"; releases go from {known[0]} to {known[-1]}" if known else ""
    yanked = any(release.yanked and Version(release.version) == wanted for release in found)
    gone = f"{name}=={version} was yanked" if yanked else f"no release {name}=={version}"
    return f"{gone}: the nearest are {' and '.join(map(str, near)) or 'unknown'}{span}"


def _published(name: str) -> list[Release]:
    """The releases of a package but for the pre-releases; none where the index cannot be asked."""
    try:
        return [release for release in index.releases(name) if release.final]
    except Fault:
        return []


def _version(name: str, written: str) -> str:
    try:
        return spelt(Version(written))
    except InvalidVersion:
        raise UserError(f"pins.{name}={written} is no version: write one like 0.15.4") from None


def spelt(version: Version) -> str:
    """A version as releases are spelt: 0.29.3, where v0.29.3 or 0.29.3.0 was written.

    Zeros after the third number go: they mean nothing, and releases have none there. Those before
    stay, as in 4.0.0: whether a release is called 5.0 or 5.0.0, the index alone knows.
    """
    short = version.release
    while len(short) > 3 and not short[-1]:
        short = short[:-1]
    return str(version).replace(_dotted(version.release), _dotted(short), 1)


def _dotted(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))
