"""Charts over time: which releases have a bug, and how long nightlies took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from harness.publish.charts import Chart, make_chart

UNTESTED = "not tested"

SIGNS = {
    "affected": ("var:--buggy", "circle"),
    "not affected": ("var:--fixed", "square"),
    "inconclusive": ("var:--dim", "cross"),
    "unsupported": ("var:--dim", "triangle-down"),
    UNTESTED: ("var:--faint", "triangle-up"),
}
"""The colour and the shape of each status."""


def strip(rows: Sequence[Mapping[str, str | None]], package: str, others: str = "") -> Chart:
    """Which releases have a bug, along their days, or one after another if a day is not known.

    A row has ``version``, ``day`` (or None), ``status`` and ``why``; the oldest release comes
    first. ``others`` says what other releases they ran with. In the chart each status has a line of
    its own, besides its colour and sign.
    """
    statuses = [a for a in SIGNS if any(row["status"] == a for row in rows)]
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
                "status:N",
                sort=statuses,
                title=None,
                scale=alt.Scale(domain=statuses),
                axis=alt.Axis(grid=True),
            ),
            color=alt.Color(
                "status:N",
                legend=None,
                scale=alt.Scale(domain=statuses, range=[SIGNS[a][0] for a in statuses]),
            ),
            shape=alt.Shape(
                "status:N",
                legend=None,
                scale=alt.Scale(domain=statuses, range=[SIGNS[a][1] for a in statuses]),
            ),
            tooltip=[
                alt.Tooltip("version:N", title=package),
                alt.Tooltip("day:N"),
                alt.Tooltip("status:N"),
                alt.Tooltip("why:N"),
            ],
        )
        .properties(width="container", height=34 * max(1, len(statuses)))
    )
    columns = (package, "released", "status", "why")
    table = [(row["version"], row["day"] or "", row["status"], row["why"]) for row in rows]
    summary = f"{package}: {_spans(rows)}"
    return make_chart(
        " ".join(filter(None, ("Which releases of", package, others))),
        summary,
        [("", drawn)],
        columns,
        table,
    )


def _spans(rows: Sequence[Mapping[str, str | None]]) -> str:
    """``4.31.0 to 4.37.2 affected; 4.38.2 to 5.14.1 not affected``: certain statuses in a row."""
    certain = [row for row in rows if row["status"] in ("affected", "not affected")]
    spans: list[tuple[str | None, list[str]]] = []
    for row in certain:
        if not spans or spans[-1][0] != row["status"]:
            spans.append((row["status"], []))
        spans[-1][1].append(str(row["version"]))
    parts = [f"{_ends(versions)} {status}" for status, versions in spans]
    return "; ".join(parts) or "no release has a clear status"


def _ends(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


FEW_NIGHTLIES = 12
"""Up to this many bars have a fixed width: otherwise they would fill the page."""


def durations(nightlies: Sequence[tuple[str, float]]) -> Chart:
    """How long the runs of each nightly took, in minutes; ``nightlies`` are names and seconds."""
    rows = [{"nightly": name, "minutes": seconds / 60} for name, seconds in nightlies]
    drawn = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color="var:--fixed", size=28 if len(rows) <= FEW_NIGHTLIES else alt.Undefined)
        .encode(
            x=alt.X(
                "nightly:N", sort=None, title=None, axis=alt.Axis(labelAngle=-60, labelOverlap=True)
            ),
            y=alt.Y("minutes:Q", title="minutes"),
            tooltip=["nightly:N", alt.Tooltip("minutes:Q", format=".1f")],
        )
        .properties(width="container", height=160)
    )
    longest = max((seconds for _, seconds in nightlies), default=0.0) / 60
    summary = f"the runs of a nightly took up to {longest:.1f} minutes in total"
    table = [(name, round(seconds / 60, 1)) for name, seconds in nightlies]
    return make_chart(
        "How long the runs took", summary, [("", drawn)], ("nightly", "minutes"), table
    )
