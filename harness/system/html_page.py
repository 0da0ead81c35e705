"""The frame of a report as one HTML page, without a link to anything."""

from __future__ import annotations

import html

from harness.system.text import plain

WIDTH = 900
"""Of a picture, in pixels."""


def page(title: str, body: str) -> str:
    """The page with this title. ``body`` is HTML already."""
    return FRAME.replace("TITLE", html.escape(plain(title)), 1).replace("BODY", body, 1)


FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 sans-serif; max-width: 940px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse }
td, th { border-bottom: 1px solid #8884; padding: .2em .7em; text-align: left; vertical-align: top }
svg text { font: 13px sans-serif; fill: currentColor }
li { overflow-wrap: anywhere }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
.wide { overflow-x: auto }
.wide table { min-width: 760px }
svg { width: 100%; min-width: 620px; height: auto }
.tick { stroke: #888; fill: none; opacity: .6 }
.fault { stroke: #c22; fill: #c22 }
</style>
</head>
<body>
BODY</body>
</html>
"""
