"""What watches a process, for those that subscribe to events which concern several parts of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.rows import Rows
from ..fence import Fence
from ..reporting.account import Account
from ..sampling.collectives import Collectives
from ..sampling.losses import Losses
from ..states.schedules import Schedules
from ..trainings.trainings import Trainings


@dataclass
class Subscriber:
    """The parts of guard in a process."""

    trainings: Trainings
    fence: Fence
    account: Account
    losses: Losses
    rows: Rows
    schedules: Schedules
    collectives: Collectives
