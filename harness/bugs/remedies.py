"""What an affected user can do: a release without the bug, computed from recorded runs, and the way
around it that the scenario names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from packaging.version import Version

from harness.bugs import catalog, lookup
from harness.bugs.periods import periods, tested
from harness.bugs.results import Status
from harness.python.results import Advice

Fits = Callable[[str, str], bool]
"""Whether a release of a package is for the user's Python."""


def any_fits(package: str, release: str) -> bool:
    return True


def of(name: str, installed: str | None = None, fits: Fits = any_fits) -> str:
    """The remedy for a bug, in the imperative: for an installed release of its subject, or for any.

    Empty if no release is without the bug, and the scenario names no way around it.
    """
    release = nearest(name, installed, fits) if installed else _any(name)
    scenario = catalog.scenario(name)
    older = installed and release and Version(release) < Version(installed)
    use = f"use {'the older ' if older else ''}{scenario.subject} {release}" if release else ""
    if installed and not release and nearest(name, installed):
        use = f"no release of {scenario.subject} without it is for the Python of your files"
    return ", or ".join(filter(None, (use, scenario.remedy)))


def nearest(name: str, installed: str, fits: Fits = any_fits) -> str | None:
    """The nearest newer release that was tested as not affected, otherwise the nearest older one.

    A release that has the bug with one of its tested companions counts as affected.
    """
    free = [Version(v) for v, status in tested(name).items() if status is Status.NOT_AFFECTED]
    base, package = Version(installed), catalog.scenario(name).subject
    newer, older = sorted(v for v in free if v > base), sorted(v for v in free if v < base)
    choices = map(str, (*newer, *reversed(older)))
    return next((release for release in choices if fits(package, release)), None)


def _any(name: str) -> str:
    """The releases to use, for users of any affected release: after its last period, or before."""
    spans = periods(name)
    if not spans:
        return ""
    statuses = tested(name).items()
    free = [Version(version) for version, status in statuses if status is Status.NOT_AFFECTED]
    end, start = Version(spans[-1].last), Version(spans[-1].first)
    after, before = [v for v in free if v > end], [v for v in free if v < start]
    if after:
        return f"{after[0]} or later"
    return str(before[-1]) if before else ""


def advice(
    package: str,
    installed: str,
    own_bugs: Sequence[str],
    others: Iterable[str],
    fits: Fits = any_fits,
) -> Advice | None:
    """The nearest newer release of a package with the fewest bugs. If no newer release has fewer
    bugs than the installed one, it is an older release of the same major version; nobody downgrades
    further to avoid one bug.

    ``own_bugs`` are the bugs of the installed release, ``others`` further bugs of the package that
    count. None if no tested release has fewer bugs.
    """
    base = Version(installed)
    of_bug = {name: tested(name) for name in (*own_bugs, *others)}
    releases = {Version(v) for name in own_bugs for v in of_bug[name] if fits(package, v)} - {base}

    def status(name: str, release: Version) -> Status | None:
        return lookup.infer(of_bug[name].items(), str(release)).status

    def of_release(release: Version) -> Advice:
        free = [n for n in own_bugs if status(n, release) is Status.NOT_AFFECTED]
        new = [n for n in others if status(n, release) is Status.AFFECTED]
        remaining = tuple(name for name in own_bugs if name not in free)
        return Advice(package, str(release), tuple(free), remaining, tuple(new))

    def bugs(candidate: Advice) -> int:
        return len(candidate.remaining) + len(candidate.new)

    newer = sorted(release for release in releases if release > base)
    older = [release for release in releases if release < base and release.major == base.major]
    older.sort(reverse=True)
    for side in (newer, older):
        best = min(map(of_release, side), key=bugs, default=None)  # the first of equals is nearest
        if best and bugs(best) < len(own_bugs):
            return best
    return None
