"""A stand-in for torchrun: a package named torch that runs the script of a launch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bugs.api.spec import Lane
from harness.rank import bytecode
from harness.rank.exits import EXIT_FILE, Identity
from harness.rank.forkserver import BEFORE_UPSTREAM
from harness.run.launch import RankSettings, launch, rank_environment
from harness.run.server_pool import OverlayServer, Wanted
from tests.sandbox import PATIENCE


@dataclass
class StandIn:
    """Launches a Python script instead of torchrun."""

    folder: Path
    settings: RankSettings
    of: Identity
    server: OverlayServer | None = None

    @property
    def launched(self) -> Path:
        return self.folder / self.of.variant

    def launch(
        self, script: str, tick: Callable[[], None] = lambda: None, timeout: float = PATIENCE
    ) -> dict[str, Any]:
        self.launched.mkdir()
        (self.launched / "script.py").write_text(script)
        how, server = self.settings, self.server
        launch(self.folder, self.launched, self.of, how, timeout=timeout, tick=tick, server=server)
        return self.exit()

    def exit(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.launched / EXIT_FILE).read_text())
        return content


def stand_in(site: Path) -> None:
    """Make a package named torch in ``site``; its torchrun runs ``script.py`` in its folder."""
    for module in BEFORE_UPSTREAM:
        if module.startswith("torch."):
            file = site.joinpath(*module.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    for folder in [site / "torch", *(site / "torch").rglob("*")]:
        if folder.is_dir():
            (folder / "__init__.py").touch()
    run = "def main(arguments):\n    exec(open('script.py').read(), {'arguments': arguments})\n"
    (site / "torch" / "distributed" / "run.py").write_text(run)
    compiled(site)


def compiled(site: Path) -> None:
    """Compile all files to bytecode, as in an overlay."""
    bytecode.compile_all(sorted(site.rglob("*.py")), site)


def settings(site: Path) -> RankSettings:
    return RankSettings(Lane.CPU, site, site / "extensions", 1)


def wanted(site: Path, *modules: str, **environment: str) -> Wanted:
    """A server for the stand-in that imports ``modules`` as upstream."""
    variables = {**rank_environment(settings(site)), **environment}
    return Wanted(variables, (), modules, ("scenarios.deepspeed.bf16_clip",))
