"""The file with what was trained when checkpoints were saved: a later process goes on with it."""

from __future__ import annotations

import json
import os
from functools import cached_property

from ..checks.checkpoints import State
from ..sentences import say
from ..states.training_states import stamp

NAME = "saved_states.json"


class SavedStates:
    """The last of them, in the folder of the report, never beside the user's checkpoints."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME) if folder else ""

    @cached_property
    def states(self) -> list[State]:
        """Those of earlier processes, and of this one."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return [State.of_json(one) for one in json.load(file)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return []  # there is none, or another release wrote it

    def write(self) -> None:
        """Keep them. A checkpoint that is still being written gets its stamp the next time."""
        for one in self.states:
            if one.is_of_this_process and not one.stamp:
                one.stamp = stamp(one.path)
        if not self._path:
            return
        part = f"{self._path}.{os.getpid()}"
        try:
            with open(part, "w", encoding="utf-8") as file:
                json.dump([one.to_json() for one in self.states], file)
            os.replace(part, self._path)
        except OSError as error:  # such as a full disk: the checks go on
            say(f"what was saved is not kept: {error.strerror}: {self._path}")
            self._path = ""
