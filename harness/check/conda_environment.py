"""Conda's environment.yml, and its match specs: ``pytorch::pytorch=2.1``, ``pytorch 2.1.* py_0``.

The build of a package and its channel do not say which release it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version

from harness.bugs import catalog
from harness.check.constraints import of_conda
from harness.check.contradictions import exact_versions, is_impossible
from harness.check.requirement_lines import Line, Purpose, Skipped, parse_line, statements
from harness.check.sections import Content
from harness.check.synonyms import ELSEWHERE, named_in, unrecorded_libraries
from harness.system.documents import as_list, as_table, as_text, as_texts
from harness.system.text import short

WHERE = "dependencies"
LONGEST = 1000
"""Characters of a match spec."""

FILE = re.compile(r"(?:.*/)?([^/]+)-([^/-]+)-[^/-]+\.(?:tar\.bz2|conda)(?:#.*)?")
"""The address of a package: it names a version and a build."""
BUILD = re.compile(r"(.+?)(?:(?<![=!|,<>~])[ =]([^-=,|<>~ ]+))?")
"""A version and a build, ``1.2=py_0`` or ``>=1,<2 py_0``."""


BESIDE = ("torchvision", "torchaudio", "torchtext", "tokenizers", "xformers")
"""Packages that pip has under the same names, and that need certain releases of ours."""


CUDA = "pytorch-cuda"
CHANNEL, LAST = "pytorch", "<2.6"
"""PyTorch's own channel, and the first release of torch that it does not have any more.
Source: https://github.com/pytorch/pytorch/issues/138506"""
OF_CUDA = {
    "11.6": ("1.13", "2"),
    "11.7": ("1.13", "2.1"),
    "11.8": ("2", "2.6"),
    "12.1": ("2.1", "2.6"),
    "12.4": ("2.4", "2.6"),
}
"""By release of pytorch-cuda, the first release of torch that conda has with it, and the first that
it does not have any more: its channel ends with 2.5.
Source: https://pytorch.org/get-started/previous-versions"""


class NotPythons(ValueError):
    """A package that pip cannot have: ``_libgcc_mutex``."""


@dataclass(frozen=True)
class MatchSpec:
    """A package as conda names it."""

    name: str
    """As pip has it: ``torch``."""
    version: str = ""
    """As conda has it, ``2.1.*|2.2.*``; empty for any."""
    fuzzy: bool = False
    """Whether it is ``=2.1``: any version that begins so."""


def match_spec(text: str) -> MatchSpec:
    """The package that a match spec names. Raises ValueError for any other text."""
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    spec = re.sub(r"(^|\s)#.*", "", text).strip()
    if (file := FILE.fullmatch(spec)) is not None:
        return MatchSpec(_name(file[1]), f"=={file[2]}")
    spec, bracket, fields = spec.partition("[")  # pytorch[version='2.1.*']
    fields, _, rest = fields.partition("]")
    match = re.fullmatch(r"([\w.-]+)\s*((?:[<>=!~*\d^].*)?)", _without_channel(spec))
    if match is None or rest.strip() or (bracket and "=" not in fields):
        raise ValueError("it is no package with a version, as conda names it")
    text = re.sub(r" ?([,|]) ?", r"\1", " ".join(match[2].split()))  # spaces around operators
    text = re.sub(r"([<>=!~]) ", r"\1", text)
    parts = BUILD.fullmatch(text)
    version, build = (parts[1], parts[2]) if parts else (text, None)
    if inside := re.search(r"""\bversion\s*=\s*("[^"]*"|'[^']*'|[^,]*)""", fields):
        version = inside[1].strip("\"' ")
    fuzzy = version.startswith("=") and not version.startswith("==")
    return MatchSpec(
        _name(match[1]), version.lstrip("=") if fuzzy else version, fuzzy and not build
    )


def _without_channel(spec: str) -> str:
    """A spec without its channel, ``conda-forge/linux-64::`` or ``https://host/channel::``."""
    return spec.rpartition(":")[2].strip()


def _channel(spec: str) -> str:
    """The channel that a spec names, without the platform; empty without one."""
    return spec.rpartition("::")[0].partition("/")[0].strip()


def _name(text: str) -> str:
    try:
        name = canonicalize_name(text, validate=True)
    except InvalidName:
        raise NotPythons(f"'{short(text)}' is no name of a package") from None
    return ELSEWHERE.get(name, name)


def read(document: Any, file: str) -> Content:
    """Read what an environment declares. Only training libraries and packages that scenarios pin
    are kept: others often have another name in pip."""
    table = as_table(document, "it")
    if WHERE not in table:
        instead = "'conda list --json' names the packages of an environment"
        raise ValueError(f"it has no list '{WHERE}'; {instead}")
    content, ours = Content(), {*named_in(["torch", *catalog.upstreams(), *BESIDE])}
    ours |= unrecorded_libraries()
    content.add("", WHERE)
    cuda, has_torch = None, False
    channels = as_texts(table.get("channels"), "channels")
    others = [channels.index(one) for one in ("conda-forge", "defaults") if one in channels]
    is_first = CHANNEL in channels and channels.index(CHANNEL) < min(others, default=len(channels))
    for entry in as_list(table[WHERE], WHERE):
        if isinstance(entry, Mapping):
            _of_pip(as_table(entry, f"an entry of {WHERE}"), content, ours, file)
            continue
        text = as_text(entry, f"an entry of {WHERE}")
        try:
            spec = match_spec(text)
            if spec.name not in ("python", CUDA, *ours):
                continue
            specifier = of_conda(spec.version, fuzzy=spec.fuzzy)
        except NotPythons:
            continue
        except ValueError as error:
            _leave_out(text, str(error), content, ours, file)
            continue
        if spec.name == "python":
            content.python = content.python or specifier
        elif spec.name == CUDA:
            cuda = SpecifierSet(specifier)
        else:
            if spec.name == "torch":
                has_torch, channel = True, _channel(text)
                is_first = channel == CHANNEL or (is_first and not channel)
            content.add("", WHERE, [parse_line(f"{spec.name}{specifier}")])
            if "|" in spec.version:
                where = f"{file}, {WHERE}: '{short(text)}'"
                content.notes.append(f"{where}: which of the alternatives is left open")
    bound = _bound_of(cuda) if cuda is not None else ""
    bound = bound or (LAST if is_first else "")
    lines = [line for line in content.sections[WHERE].lines if isinstance(line, Line)]
    named = [line.requirement for line in lines if line.requirement]
    specifiers = [one.specifier for one in named if canonicalize_name(one.name) == "torch"]
    if bound and has_torch and len(specifiers) == 1:  # pip may replace conda's
        versions = specifiers[0] & SpecifierSet(bound)
        if not (exact_versions(versions) or is_impossible(versions)):
            content.add("", WHERE, [parse_line(f"torch{bound}", Purpose.CONSTRAINT)])
    return content


def _bound_of(cuda: SpecifierSet) -> str:
    """The releases of torch that conda has with these of pytorch-cuda; empty if it has none."""
    spans = [OF_CUDA[release] for release in cuda.filter(OF_CUDA)]
    if not spans:
        return ""
    first = min((first for first, _ in spans), key=Version)
    return f">={first},<{max((end for _, end in spans), key=Version)}"


def _of_pip(entry: Mapping[str, Any], content: Content, ours: Collection[str], file: str) -> None:
    texts = as_texts(entry.get("pip"), f"{WHERE}, pip")
    # conda writes them into a requirements file
    content.add("", WHERE, [parse_line(line) for text in texts for _, line in statements(text)])
    for name in sorted(entry.keys() - {"pip"}):
        values = entry[name] if isinstance(entry[name], list) else [entry[name]]
        for value in values:
            _leave_out(f"{name}: {value}", "only pip's list is read", content, ours, file)


def _leave_out(entry: str, why: str, content: Content, ours: Collection[str], file: str) -> None:
    """Note an entry that cannot be read: the release of the package of ours that it may name is
    unknown."""
    where = f"{file}, {WHERE}: '{short(entry)}'"
    words = map(canonicalize_name, re.findall(r"[\w.-]+", f"{_without_channel(entry)} {entry}"))
    names = (ELSEWHERE.get(word, "torch" if word == CUDA else word) for word in words)
    name = next((name for name in names if name in ours), "")
    if name:
        content.add("", WHERE, [Line(entry, (Skipped(name, f"{where} cannot be read"),))])
    effect = f"the release of {name} is not known" if name else "it is left out"
    content.notes.append(f"{where} cannot be read, so {effect}: {why}")
