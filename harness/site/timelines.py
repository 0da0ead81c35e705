"""Along the days: which releases have a bug, and how long the nights took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from harness.site.chart import Chart, made

SIGNS = {
    "affected": ("var:--buggy", "circle"),
    "not affected": ("var:--fixed", "square"),
    "inconclusive": ("var:--dim", "cross"),
    "unsupported": ("var:--dim", "triangle-down"),
    "not asked": ("var:--faint", "triangle-up"),
}
"""The colour and the shape of each answer."""


def strip(rows: Sequence[Mapping[str, str | None]], package: str, beside: str = "") -> Chart:
    """Which releases have a bug, along the days they appeared on, or one after another.

    A row has ``version``, ``day`` (None where that is not known), ``answer`` and ``why``, the
    oldest first; ``beside`` says with what else they ran. Each answer has a line of its own in the
    chart, besides its colour and sign.
    """
    answers = [a for a in SIGNS if any(row["status"] == a for row in rows)]
    versions = [str(row["version"]) for row in rows]
    dated = all(row["day"] for row in rows)
    x = (
        alt.X(
            "day:T",
            title="released",
            scale=alt.Scale(padding=8),
            axis=alt.Axis(grid=True, tickCount=8, labelOverlap=True),
        )
        if dated
        else alt.X(
            "version:N",
            sort=versions,
            title=f"{package}, oldest first",
            axis=alt.Axis(labelAngle=-60, labelOverlap=True),
        )
    )
    drawn = (
        alt.Chart(alt.Data(values=[dict(row) for row in rows]))
        .mark_point(filled=True, size=70, opacity=0.9)
        .encode(
            x=x,
            y=alt.Y(
                "answer:N",
                sort=answers,
                title=None,
                scale=alt.Scale(domain=answers),
                axis=alt.Axis(grid=True),
            ),
            color=alt.Color(
                "answer:N",
                legend=None,
                scale=alt.Scale(domain=answers, range=[SIGNS[a][0] for a in answers]),
            ),
            shape=alt.Shape(
                "answer:N",
                legend=None,
                scale=alt.Scale(domain=answers, range=[SIGNS[a][1] for a in answers]),
            ),
            tooltip=[
                alt.Tooltip("version:N", title=package),
                alt.Tooltip("day:N"),
                alt.Tooltip("answer:N"),
                alt.Tooltip("why:N"),
            ],
        )
        .properties(width="container", height=34 * max(1, len(answers)))
    )
    columns = (package, "released", "status", "why")
    table = [(row["version"], row["day"] or "", row["status"], row["why"]) for row in rows]
    told = f"{package}: {_spans(rows)}"
    return made(
        " ".join(filter(None, ("Which releases of", package, beside))),
        told,
        [("", drawn)],
        columns,
        table,
    )


def _spans(rows: Sequence[Mapping[str, str | None]]) -> str:
    """``4.31.0 to 4.37.2 affected; 4.38.2 to 5.14.1 not affected``: certain answers in a row."""
    certain = [row for row in rows if row["status"] in ("affected", "not affected")]
    spans: list[tuple[str | None, list[str]]] = []
    for row in certain:
        if not spans or spans[-1][0] != row["status"]:
            spans.append((row["status"], []))
        spans[-1][1].append(str(row["version"]))
    told = [f"{_ends(versions)} {answer}" for answer, versions in spans]
    return "; ".join(told) or "no release gave a certain answer"


def _ends(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


FEW_NIGHTS = 12
"""So many bars have a width of their own: they would fill the page else."""


def durations(nights: Sequence[tuple[str, float]]) -> Chart:
    """How long the runs of each night took, in minutes; of nights by their names."""
    rows = [{"night": name, "minutes": seconds / 60} for name, seconds in nights]
    drawn = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color="var:--fixed", size=28 if len(rows) <= FEW_NIGHTS else alt.Undefined)
        .encode(
            x=alt.X(
                "night:N", sort=None, title=None, axis=alt.Axis(labelAngle=-60, labelOverlap=True)
            ),
            y=alt.Y("minutes:Q", title="minutes"),
            tooltip=["night:N", alt.Tooltip("minutes:Q", format=".1f")],
        )
        .properties(width="container", height=160)
    )
    longest = max((seconds for _, seconds in nights), default=0.0) / 60
    told = f"the runs of a night took up to {longest:.1f} minutes, one after another"
    table = [(name, round(seconds / 60, 1)) for name, seconds in nights]
    return made("How long the runs took", told, [("", drawn)], ("night", "minutes"), table)
