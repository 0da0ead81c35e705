"""All that a scenario imports, apart from detectors. Standard library only."""

from __future__ import annotations

from harness.bugs.api.fields import Count, Entry, Fields, Flag, Number, Size
from harness.bugs.api.numbers import finite, named, near
from harness.bugs.api.pictures import (
    Bars,
    Grid,
    Lines,
    Picture,
    Pictures,
    bars,
    by_step,
    grid,
    lines,
)
from harness.bugs.api.plan import Kind, Plan, each
from harness.bugs.api.shapes import (
    COUNT,
    FLAG,
    LINE,
    MAY_OVERFLOW,
    NUMBER,
    SIZE,
    WHOLE,
    Facts,
    Shape,
    alike,
    by_name,
    exactly,
    held,
    many,
    matching,
    maybe,
    one_of,
    optional,
)
from harness.bugs.api.spec import (
    BUGGY,
    FIXED,
    Check,
    Context,
    Defect,
    Edits,
    Exercise,
    Finding,
    Lane,
    Position,
    Record,
    Records,
    Scenario,
    Trials,
    Variant,
    together,
)
from harness.system.errors import Inconclusive
