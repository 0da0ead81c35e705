"""What report.md proposes: the remedy of the scenario."""

from __future__ import annotations

from scenarios.deepspeed.zero3_module_only.scenario import REMEDY

PROPOSAL = (REMEDY,)
