"""Files in which a project declares what it needs: pyproject.toml, setup.cfg, environment.yml.

Each becomes lines of a requirements file. An extra or a dependency group counts only if it is
named: ``pyproject.toml[train]``. Of a project's folder, the file is read that says best what it
installs.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.bugs import catalog
from harness.check import source
from harness.check.source import PackageFile, content_of
from harness.check.synonyms import ELSEWHERE
from harness.system.errors import UserError

PLAIN = (".toml", ".cfg")
"""Files whose requirements have no options."""

KINDS = ("pyproject.toml", "setup.cfg", "environment.yml", "environment.yaml")


@dataclass(frozen=True)
class Declared:
    """What a project declares."""

    lines: Sequence[tuple[str, str]]
    """Where each requirement is, ``pyproject.toml, project.dependencies``, and its line."""
    python: str = ""
    """The Pythons that it is for, ``>=3.10``; empty if it does not say."""
    choices: Sequence[str] = ()
    """The extras and groups that were not chosen."""


SETUP = (
    "setup.py is code, and is not run: install the project, and name its Python with --python, or "
    "'pip freeze | distributed-bugs check -r -' there"
)


def is_one(source: PackageFile) -> bool:
    """Whether a file declares the needs of a project. A YAML file is conda's, whatever its name."""
    return source.path.name in KINDS or source.path.suffix in (".yml", ".yaml")


def declared(source: PackageFile) -> Declared:
    """The requirements in a file. Raises UserError if it is damaged or declares none."""
    found, python = _read(source)
    unknown = sorted(set(map(_key, source.chosen)) - {_key(name) for name in found})
    others = {name for name in found if name}
    if unknown:
        names = ", ".join(sorted(others)) or "none"
        raise UserError(f"{source.name} has no extra or group {unknown[0]}; it has: {names}")
    wanted = {"", *map(_key, source.chosen)}
    lines = [
        (f"{source.name}, {where}", line)
        for name, (where, those) in found.items()
        if _key(name) in wanted
        for line in those
    ]
    for where, line in lines:
        # Only conda's list for pip may have options: it is a requirements file.
        if line.startswith("-") and not isinstance(line, Include) and source.path.suffix in PLAIN:
            raise UserError(f"{where}: '{line}' is refused: a requirement begins with a name")
    if not lines:
        raise UserError(
            f"{source.name} names no dependencies"
            + (f" but those of {', '.join(sorted(others))}: {source.name}[NAME]" if others else "")
        )
    left = sorted(name for name in others if _key(name) not in wanted)
    return Declared(lines, python, left)


class Include(str):
    """The line for another file that a project's file names."""

    __slots__ = ()


Groups = dict[str, tuple[str, list[str]]]
"""By the name of an extra or a group, where it is and its requirements; "" is always installed."""


def _read(source: PackageFile) -> tuple[Groups, str]:
    """The requirements in a file, and the Pythons that it is for."""
    try:
        if source.path.suffix == ".toml":
            table = content_of(source.name, source.text, "TOML")
            return _pyproject(table), _python(table)
        if source.path.suffix == ".cfg":
            config = _config(source.text)
            return _setup_cfg(config), config.get("options", "python_requires", fallback="")
        content = content_of(source.name, source.text, "YAML")
        python = next(iter(_conda_versions(content, "python")), "")
        return {"": ("dependencies", list(_conda(content)))}, python
    except (ValueError, TypeError, AttributeError, KeyError, configparser.Error) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"{source.name} cannot be read: {why}") from None


def _python(table: Mapping[str, Any]) -> str:
    if python := table.get("project", {}).get("requires-python"):
        return str(python)
    poetry = table.get("tool", {}).get("poetry", {}).get("dependencies", {})
    return _specifier(str(poetry["python"])) if "python" in poetry else ""


def _pyproject(document: Mapping[str, Any]) -> Groups:
    project, tool = document.get("project", {}), document.get("tool", {})
    found: Groups = {"": ("project.dependencies", list(project.get("dependencies", [])))}
    dynamic = tool.get("setuptools", {}).get("dynamic", {})
    if "dependencies" in project.get("dynamic", []) and "dependencies" in dynamic:
        found[""] = ("tool.setuptools.dynamic", list(_included(dynamic["dependencies"])))
    for name, those in project.get("optional-dependencies", {}).items():
        found[name] = (f"project.optional-dependencies.{name}", list(those))
    for name, those in dynamic.get("optional-dependencies", {}).items():
        found.setdefault(name, ("tool.setuptools.dynamic", list(_included(those))))
    groups = document.get("dependency-groups", {})
    for name in groups:
        lines = list(_group(groups, name, ()))
        found.setdefault(name, (f"dependency-groups.{name}", lines))
    return _own_extras(_with_poetry(found, tool.get("poetry", {})), project.get("name", ""))


def _included(dynamic: Mapping[str, Any]) -> Iterator[str]:
    """The lines of setuptools' dynamic dependencies: files with requirements."""
    files = dynamic.get("file", [])
    for file in [files] if isinstance(files, str) else files:
        yield Include(f"-r {file}")


def _group(groups: Mapping[str, Any], name: str, above: Sequence[str]) -> Iterator[str]:
    """The requirements of a dependency group and of those that it includes."""
    if name in above:
        raise ValueError(f"the dependency group {name} includes itself")
    for entry in groups[name]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _group(groups, entry["include-group"], (*above, name))


def _own_extras(found: Groups, project: str) -> Groups:
    """Replace requirements of the project itself, ``ours[train]``, by those of its extras."""

    def expanded(line: str, above: Sequence[str]) -> Iterator[str]:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            requirement = None
        if not project or not requirement or _key(requirement.name) != _key(project):
            yield line
            return
        for extra in requirement.extras:
            for name, (_, lines) in found.items():
                if _key(name) == _key(extra) and name not in above:
                    for each in lines:
                        yield from expanded(each, (*above, name))

    return {
        name: (where, [each for line in lines for each in expanded(line, (name,))])
        for name, (where, lines) in found.items()
    }


def _with_poetry(found: Groups, poetry: Mapping[str, Any]) -> Groups:
    """The groups with those of Poetry's own tables."""
    extras = poetry.get("extras", {})
    where, lines = found[""]
    for name, wanted in poetry.get("dependencies", {}).items():
        if name == "python":
            continue
        of = [extra for extra, names in extras.items() if name in names]
        for line, optional in _poetry_lines(name, wanted):
            if not optional:
                where, lines = "tool.poetry.dependencies", [*lines, line]
            for extra in of if optional else ():
                found.setdefault(extra, (f"tool.poetry.extras.{extra}", []))[1].append(line)
    found[""] = (where, lines)
    groups = {
        "dev": {"dependencies": poetry.get("dev-dependencies", {})},
        **poetry.get("group", {}),
    }
    for group, table in groups.items():
        those = [
            line
            for name, wanted in table.get("dependencies", {}).items()
            for line, _ in _poetry_lines(name, wanted)
        ]
        if those:
            found.setdefault(group, (f"tool.poetry.group.{group}", those))
    return found


def _poetry_lines(name: str, wanted: Any) -> Iterator[tuple[str, bool]]:
    """The lines for an entry of Poetry, and whether only an extra installs it."""
    for one in wanted if isinstance(wanted, list) else [wanted]:
        table = {"version": one} if isinstance(one, str) else one
        extras = ",".join(table.get("extras", []))
        named = f"{name}[{extras}]" if extras else name
        if address := table.get("git") or table.get("url") or table.get("path"):
            address = f"git+{address}" if "git" in table else address
            line = f"{named} @ {address}" if ":" in address else address
        else:
            line = f"{named}{_specifier(str(table.get('version', '*')))}"
        marker = table.get("markers")
        yield f"{line} ; {marker}" if marker else line, bool(table.get("optional"))


def _specifier(constraint: str) -> str:
    """Poetry's constraint as a specifier: ``^1.2`` is ``>=1.2,<2``. Of alternatives the last."""
    constraint = constraint.split("||")[-1]
    parts = [part for part in re.split(r"[,\s]+(?=[\^~<>=!\d*])", constraint.strip()) if part]
    return ",".join(filter(None, map(_bound, parts)))


def _bound(part: str) -> str:
    part = part.strip().replace(" ", "")
    if part in ("", "*"):
        return ""
    if part[0] == "^" or (part[0] == "~" and part[1:2] != "="):
        return _up_to(part[1:], caret=part[0] == "^")
    return part if part[0] in "<>=!~" else f"=={part}"


def _up_to(version: str, *, caret: bool) -> str:
    """The range of ``^`` (to the next change of the first number that is not 0) or ``~``."""
    numbers = [int(number) for number in Version(version).release]
    at = min(1, len(numbers) - 1)
    if caret:
        at = next((n for n, number in enumerate(numbers) if number), len(numbers) - 1)
    above = [*numbers[:at], numbers[at] + 1]
    return f">={version},<{'.'.join(map(str, above))}"


def _config(text: str) -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None)
    config.read_string(text)
    return config


def _setup_cfg(config: configparser.ConfigParser) -> Groups:
    def lines(value: str) -> list[str]:
        if value.strip().startswith("file:"):
            return [Include(f"-r {name.strip()}") for name in value.strip()[5:].split(",")]
        return [line.strip() for line in value.splitlines() if line.strip()]

    found: Groups = {"": ("install_requires", [])}
    if config.has_option("options", "install_requires"):
        found[""] = ("install_requires", lines(config.get("options", "install_requires")))
    if config.has_section("options.extras_require"):
        for name, value in config.items("options.extras_require"):
            found[name] = (f"extras_require.{name}", lines(value))
    return found


def _conda(document: Any) -> Iterator[str]:
    """The requirements in conda's environment, with the names that pip has for them."""
    for entry in document["dependencies"]:
        if isinstance(entry, Mapping):
            yield from entry.get("pip", [])
        elif isinstance(entry, str) and (found := _conda_package(entry)):
            name, specifier = found
            if name in ("torch", *catalog.upstreams()):  # others often have another name for pip
                yield f"{name}{specifier}"


def _conda_versions(document: Any, wanted: str) -> Iterator[str]:
    for entry in document["dependencies"]:
        found = _conda_package(entry) if isinstance(entry, str) else None
        if found and found[0] == wanted:
            yield found[1]


def _conda_package(entry: str) -> tuple[str, str] | None:
    """A package of conda and pip's specifier: ``pytorch::pytorch=2.1`` is torch and ``==2.1.*``."""
    match = re.fullmatch(r"(?:[\w./-]+::)?([\w.-]+)\s*([<>=!~].*)?", entry.strip().split(" #")[0])
    if match is None:
        return None
    named = canonicalize_name(match[1])
    name, version = ELSEWHERE.get(named, named), (match[2] or "").replace(" ", "")
    if (plain := re.match(r"=(?!=)([\w.*]+)", version)) is None:
        return name, version
    wanted = plain[1]
    try:  # one equal sign: any version that begins so
        exact = len(Version(wanted).release) > 2
    except InvalidVersion:
        return name, f"=={wanted}"
    return name, f"=={wanted}" if exact else f"=={wanted}.*"


def _key(name: str) -> str:
    return canonicalize_name(name) if name else ""


LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
OTHERS = ("requirements.txt", *KINDS)


def in_folder(name: str) -> tuple[str, str]:
    """The file to read for a name, and a line that says so if the name is that of a folder.

    A lock file comes first, then what names most. Raises UserError for a folder without one.
    """
    folder, chosen = Path(name), ""
    if not folder.is_dir() and name.endswith("]"):  # .[train]
        before, _, chosen = name.rpartition("[")
        folder = Path(before)
    if folder.name == "setup.py":
        raise UserError(SETUP)
    if not folder.is_dir():
        return name, ""
    there = [each for each in (*LOCKS, *OTHERS) if (folder / each).is_file()]
    usable = [each for each in there if _says_something(folder / each)]
    if chosen:
        usable = [each for each in usable if each in KINDS]
    if not usable:
        raise UserError(
            f"{name} has none of {', '.join((*LOCKS, *OTHERS))} that names dependencies"
            + source.others_in(folder, (*LOCKS, *OTHERS))
            + (f"; {SETUP}" if (folder / "setup.py").is_file() else "")
        )
    first, *others = usable
    also = f"; {', '.join(others)} not read" if others else ""
    suffix = f"[{chosen}" if chosen else ""
    return f"{folder / first}{suffix}", f"{name}: {first} was read{also}"


def _says_something(file: Path) -> bool:
    """Whether a file names dependencies: a pyproject.toml may only configure tools."""
    if file.name not in KINDS:
        return True
    found: PackageFile = source.read_file(file)
    try:
        declared(found)
    except UserError:
        return False
    return True
