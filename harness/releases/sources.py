"""Checkouts as pins: the code of a branch, of a commit, or of a folder with its own changes.

    ../accelerate              the files as they are, also those not committed
    ../accelerate@v1.9.0       a tag, branch or commit of it
    git+https://...@REF        the same of a repository elsewhere

A source is copied and built into a wheel in the cache; nothing is written to the checkout. It is
then pinned like a release, under the version that it claims to be and its commit, as setuptools-scm
writes it: ``1.10.0.dev0+g4f8d1c2ab301``, or ``...+g4f8d1c2ab301.d5e6f7a8`` with changed files.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from harness.bugs.pins import is_source
from harness.releases import uv
from harness.system import archives, git
from harness.system.errors import Inconclusive, UserError
from harness.system.files import folder_whole, locked, sha256, write_whole, writing

SHORT = 12
"""Digits of a commit in a version."""
REMOTE = "git+"
PRETENDED = "SETUPTOOLS_SCM_PRETEND_VERSION"
"""The variable with the version of a package that has no git in its folder."""


@dataclass(frozen=True)
class Source:
    """The code of one commit of a package, perhaps with changes, as a wheel."""

    name: str
    version: str
    """The version that it claims to be, with its commit."""
    commit: str
    title: str
    """The first line of the commit's message."""
    day: str
    """The day (ISO) of the commit."""
    tag: str
    """The last tag before it; empty if there is none."""
    distance: int
    """The number of commits since that tag."""
    changed: bool
    """Whether files differed from the commit."""
    wheel: str
    """The path of the wheel."""

    def __str__(self) -> str:
        after = f"{self.distance} commits after {self.tag}" if self.distance else self.tag
        notes = [note for note in (after, "with changed files" if self.changed else "") if note]
        where = f" ({', '.join(notes)})" if notes else ""
        return f"{self.name} {Version(self.version).public} at {self.commit[:SHORT]}{where}"


def is_one(value: str) -> bool:
    """Whether a pin's value names a source, and not a release."""
    return value.startswith((".", "~", REMOTE)) or "/" in value


def pinned(name: str, value: str, cache: Path) -> str:
    """The version under which a source is pinned; it is built first if the cache lacks it.

    Raises UserError for a folder that is no checkout of this package and for an unknown commit, and
    Inconclusive if it does not build.
    """
    repository, ref = _repository(name, value, cache)
    commit = _commit(name, repository, ref or "HEAD")
    bare = _git(repository, "rev-parse", "--is-bare-repository").strip() == "true"
    changed = not (ref or bare) and bool(_git(repository, "status", "--porcelain", "-z"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        copy.mkdir()
        if changed:
            _copy_files(repository, copy)
            local = f"g{commit[:SHORT]}.d{_digest(copy)[:8]}"
        else:
            local = f"g{commit[:SHORT]}"
        if (source := _cached(name, local, cache)) is not None:
            return source.version
        if not changed:
            _copy_commit(repository, commit, copy)
        source_folder = _folder(name, local, cache)
        with (
            writing(source_folder, "HARNESS_CACHE"),
            locked(source_folder.with_name(f"{source_folder.name}.lock")),
        ):
            # Another run may have built it, and install its wheel.
            source = _cached(name, local, cache) or _build(
                name, local, repository, commit, changed, copy, source_folder
            )
        return source.version


def of(name: str, version: str, cache: Path) -> Source:
    """The source that is pinned under this version. Raises Inconclusive if the cache lacks it."""
    source = _cached(name, version.partition("+")[2], cache)
    if source is None:
        raise Inconclusive(
            f"the source of {name} {version} is no longer in the cache: pin it again"
        )
    return source


def among(pins: Mapping[str, str], cache: Path) -> list[Source]:
    """The sources among some pins."""
    return [of(name, version, cache) for name, version in pins.items() if is_source(version)]


@dataclass(frozen=True)
class CommitRange:
    """The commits of a package from one to another."""

    repository: Path
    commits: tuple[str, ...]
    """Oldest first, both ends included; of a merge only the side of the main branch."""

    def day(self, commit: str) -> str:
        """The day (ISO) of a commit."""
        return _git(self.repository, "show", "-s", "--format=%cs", commit).strip()

    def title(self, commit: str) -> str:
        """The first line of a commit's message."""
        return _git(self.repository, "show", "-s", "--format=%s", commit).strip()

    def changed(self, commit: str) -> list[str]:
        """The paths, in the repository, that a commit changed."""
        words = ("--no-commit-id", "--name-only", "-r", "-m", "--first-parent", "-z")
        listed = _git(self.repository, "diff-tree", *words, commit)
        return [path for path in listed.split("\0") if path]


def is_history(value: str) -> bool:
    """Whether a pin's value names commits between two: ``../accelerate@v0.24.1..v0.25.0``."""
    return is_one(value) and ".." in value.rpartition("@")[2] and "@" in value


def history(name: str, value: str, cache: Path) -> CommitRange:
    """The commits that ``FOLDER@FIRST..LAST`` names. If FIRST is on a release branch, they begin
    where that left the branch of LAST. Raises UserError if there is no commit between them."""
    where, _, span = value.rpartition("@")
    older, _, newer = span.partition("..")
    repository, _ = _repository(name, f"{where}@{newer}", cache)
    start, end = _commit(name, repository, older), _commit(name, repository, newer)
    start = _git(repository, "merge-base", start, end).strip()
    commits = _git(repository, "rev-list", "--first-parent", "--reverse", f"{start}..{end}").split()
    if not commits:
        raise UserError(f"no commit of {name} is between {older} and {newer}: name the older first")
    return CommitRange(repository, (start, *commits))


def _repository(name: str, value: str, cache: Path) -> tuple[Path, str]:
    """The folder of a repository, and the commit that a pin names in it; empty for its files."""
    if value.startswith(REMOTE):
        address, at, ref = value.removeprefix(REMOTE).rpartition("@")
        if not at or ("/" in ref.split(":")[0] and ":" in ref):  # git+ssh://git@host/...
            address, ref = value.removeprefix(REMOTE), "HEAD"
        return _fetched(address, cache), ref
    whole = Path(value).expanduser()
    path, at, ref = (str(whole), "", "") if whole.is_dir() else value.rpartition("@")
    folder = Path(path if at else value).expanduser()
    if not folder.is_dir():
        raise UserError(f"pins.{name}={value}: there is no folder {folder}")
    if not _answers(folder, "rev-parse", "--git-dir"):
        raise UserError(
            f"pins.{name}={value}: {folder} is no git repository; name a checkout of {name}"
        )
    return folder.absolute(), ref


def _fetched(address: str, cache: Path) -> Path:
    """A bare copy of a repository elsewhere, brought up to date."""
    folder = cache / "repositories" / hashlib.sha256(address.encode()).hexdigest()[:16]
    with writing(folder, "HARNESS_CACHE"):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "harness.lock"):  # another fetch would replace FETCH_HEAD
        if not _answers(folder, "rev-parse", "--git-dir") or not (folder / "HEAD").is_file():
            _git(folder, "init", "--quiet", "--bare")
        branches = "+refs/heads/*:refs/heads/*"
        _git(folder, "fetch", "--quiet", "--tags", "--force", "--", address, branches)
        _git(folder, "fetch", "--quiet", "--", address, "HEAD")
        head = _git(folder, "rev-parse", "FETCH_HEAD").strip()
        _git(folder, "update-ref", "--no-deref", "HEAD", head)
    return folder


def _commit(name: str, repository: Path, ref: str) -> str:
    commit = _answers(repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if commit:
        return commit.strip()
    tags = _git(repository, "tag", "--sort=-creatordate").split()[:3]
    choices = f": choose a commit, a branch or a tag, such as {', '.join(tags)}" if tags else ""
    raise UserError(f"no commit '{ref}' in the repository of {name}{choices}")


def _copy_commit(repository: Path, commit: str, copy: Path) -> None:
    """Write the files of a commit; only those below the folder, if it is not the whole."""
    prefix = _git(repository, "rev-parse", "--show-prefix").strip()
    tree = f"{commit}:{prefix}" if prefix else commit
    command = ["git", "-C", str(repository), "archive", "--format=tar", tree]
    with tempfile.TemporaryFile() as file:
        process = subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, env=git.environment(), check=False
        )
        if process.returncode:
            why = " ".join(process.stderr.decode(errors="replace").splitlines()[:1])
            raise Inconclusive(f"git cannot write the files of {commit[:SHORT]}: {why}")
        file.seek(0)
        archives.unpack(file, copy)


def _copy_files(repository: Path, copy: Path) -> None:
    """Copy the files of a checkout as they are, except those that git ignores."""
    listed = _git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for path in filter(None, listed.split("\0")):
        if (repository / path).is_file():  # not one that was deleted, nor a submodule
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / path, copy / path)


def _digest(copy: Path) -> str:
    """A digest of the files in a folder: their paths and contents."""
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    text = "".join(f"{path.relative_to(copy)}\0{sha256(path)}\n" for path in files)
    return hashlib.sha256(text.encode()).hexdigest()


def _folder(name: str, local: str, cache: Path) -> Path:
    return cache / "sources" / f"{canonicalize_name(name)}-{local}"


def _cached(name: str, local: str, cache: Path) -> Source | None:
    """A source that was built before; None if there is none, or only a part of one."""
    try:
        content = json.loads((_folder(name, local, cache) / "source.json").read_text("utf-8"))
        source = Source(**content)
    except (OSError, ValueError, TypeError):
        return None
    return source if Path(source.wheel).is_file() else None


def _build(
    name: str, local: str, repository: Path, commit: str, changed: bool, copy: Path, folder: Path
) -> Source:
    """Build the wheel of a copied source, and keep it in a folder."""
    with folder_whole(folder) as aside:
        tag, distance = _last_tag(repository, commit)
        wheel = _wheel(name, copy, aside, _next_version(tag, distance))
        claimed = parse_wheel_filename(wheel.name)[1].public
        title, day = _git(repository, "show", "-s", "--format=%s%n%cs", commit).splitlines()[:2]
        source = Source(
            name,
            f"{claimed}+{local}",
            commit,
            title,
            day,
            tag,
            distance,
            changed,
            str(folder / wheel.name),
        )
        write_whole(aside / "source.json", json.dumps(asdict(source), indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    return source


def _wheel(name: str, copy: Path, folder: Path, version: str) -> Path:
    """Build the wheel of a package; ``version`` is for one that would ask git for a version."""
    if not any((copy / file).is_file() for file in ("pyproject.toml", "setup.py")):
        raise UserError(f"the source of {name} has neither pyproject.toml nor setup.py")
    words = ["build", "--wheel", "--out-dir", str(folder), *uv.build_options(), str(copy)]
    uv.run(words, {name: "its source"}, environment={PRETENDED: version})
    (wheel,) = folder.glob("*.whl")
    package = parse_wheel_filename(wheel.name)[0]
    if package != canonicalize_name(name):
        raise UserError(f"pins.{name}: this is the source of {package}, not of {name}")
    return wheel


def _next_version(tag: str, distance: int) -> str:
    """What setuptools-scm calls a commit: the release after the last tag, in development."""
    try:
        base = Version(tag)
    except InvalidVersion:
        return f"0.0.dev{distance}"
    return f"{base.major}.{base.minor}.{base.micro + 1}.dev{distance}" if distance else str(base)


def _last_tag(repository: Path, commit: str) -> tuple[str, int]:
    """The last tag before a commit, and the number of commits since."""
    described = _answers(repository, "describe", "--tags", "--long", commit).strip()
    parts = re.fullmatch(r"(.+)-(\d+)-g[0-9a-f]+", described)
    return (parts[1], int(parts[2])) if parts else ("", 0)


def _answers(repository: Path, *arguments: str) -> str:
    """What git prints; empty if it fails."""
    return git.run(repository, *arguments).stdout.strip("\n")


def _git(repository: Path, *arguments: str) -> str:
    """What git prints. Raises Inconclusive with its last line if it fails."""
    process = git.run(repository, *arguments)
    if process.returncode:
        why = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Inconclusive(f"git {arguments[0]} failed in {repository}: {why}")
    return process.stdout
