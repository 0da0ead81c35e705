"""A new package changes no file of harness/: its upstream.toml has what is known of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from harness.bugs.packages import import_name, upstreams
from harness.system.files import ROOT

WORDS = {"torch", "composer", "data", "datasets", "fla", "grain", "ignite", "lightly", "streaming"}
"""What the text of a program may say without a package: torch is everywhere here."""
EXAMPLES = "an example in a message or in the help"
TRAINING = "how a user's training is started, or what its models need"
ALLOWED = {
    "bugs/api/settings.py": "the Trainer is a setting",
    "check/environment.py": EXAMPLES,
    "check/requirement_lines.py": EXAMPLES,
    "check/settings_files.py": "the formats of settings files",
    "cli/__init__.py": EXAMPLES,
    "cli/check.py": "options for the formats of settings files",
    "cli/models.py": "models are those of transformers",
    "cli/new.py": EXAMPLES,
    "cli/probe.py": EXAMPLES,
    "publish/docs_tables.py": "models are those of transformers",
    "python/commands.py": "options for the formats of settings files",
    "python/lightning_callback.py": "it is a callback of Lightning",
    "python/results.py": "models are those of transformers",
    "releases/overlay.py": "files that are compiled only when they are imported",
    "training/models/stack.py": TRAINING,
    "training/models/table.py": "models are those of transformers",
    "training/probe/runner.py": TRAINING,
    "training/probe/target.py": TRAINING,
}
"""Files of harness/ that name a package all the same. Those of rank/ know the layouts of a training
and how old releases run."""


def test_no_file_of_the_harness_names_a_package_without_a_reason() -> None:
    packages = {name for package in upstreams() for name in (package, import_name(package))}
    name = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, packages - WORDS))})(?![\w-])")
    files = {
        str(file.relative_to(ROOT / "harness"))
        for file in (ROOT / "harness").rglob("*.py")
        if any(map(name.search, _texts(file)))
    }
    assert {file for file in files if not file.startswith("rank/")} == set(ALLOWED)


def _texts(file: Path) -> Iterator[str]:
    """The strings of a module that are no documentation."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in texts:
        if isinstance(node.value, str) and id(node) not in comments:
            yield node.value
