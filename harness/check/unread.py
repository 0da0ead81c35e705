"""Files that are not read, because they are code, archives or another tool's, and what to give
instead."""

from __future__ import annotations

import re
from pathlib import Path

FREEZE = "'pip freeze | distributed-bugs check -r -'"
PIXI = "install the environment, and name its Python, as with --python .pixi/envs/default"
SETUP = (
    "setup.py is code, and is not run: install the project, and name its Python with --python, or "
    f"{FREEZE} there"
)
DOCKER = (
    "a {} is commands, and none is run: 'docker run IMAGE pip freeze | distributed-bugs check -r -'"
)
COMMANDS = (
    "it is commands, and none is run: name the file of requirements that they install, or run "
    f"{FREEZE} where they ran"
)
SCRIPT = (
    "it is code, and is not run: name its Python with --python; if its head has the dependencies: "
    "'uv export --script FILE | distributed-bugs check -r -'"
)
ARCHIVE = "it is an archive, and is not unpacked: unpack it, and name a file or a folder of it"
WHEEL = "it is a package: install it into an environment, and name that with --python"

IN_FOLDER = (
    (r"setup\.py", SETUP),
    (r"pixi\.toml", f"only pixi's lock file, pixi.lock, is read: {PIXI}"),
    (r"dockerfile([-._].*)?|.*\.dockerfile", DOCKER.format("Dockerfile")),
    (r"containerfile([-._].*)?|.*\.containerfile", DOCKER.format("Containerfile")),
)
"""Files with these names say that a folder has a project. By what the whole name looks like, in
small letters."""
NAMES = (
    *IN_FOLDER,
    (r".*\.py", SCRIPT),
    (r".*\.ipynb", f"it is a notebook, and is not run: run {FREEZE} in its environment"),
    (r"(package|package-lock|tsconfig)\.json", "it is a file of JavaScript, not of Python"),
    (r".*\.(whl|egg|conda)", WHEEL),
    (r".*\.(zip|gz|tgz|bz2|xz|zst|tar|7z)", ARCHIVE),
    (r".*\.(sh|bash|zsh|fish|ps1|bat|cmd|slurm|sbatch)|makefile|justfile", COMMANDS),
    (
        r".*\.(md|rst|html|pdf|lockb|csv|png|exe|so|pyc|pt|safetensors)",
        "it is no file of requirements: name one, or a lock file",
    ),
)

PIP_TABLE = r"\s*Package\s+Version\b.*\n\s*-+ +-+"
CONDA_TABLE = r"\s*# packages in environment at |(#.*\n|\s)*# Name +Version +Build"
CONDA_SPECS = r"(#.*\n|\s)*@EXPLICIT|(#.*\n|\s)*# This file may be used to create an environment"
JOBS = r"^(on|jobs|stages|services|script|steps|before_script)\s*:"
DECLARES = r"^dependencies\s*:"
"""A key that conda's environments have."""
TEXTS = (
    (r"#!\s*/", COMMANDS),
    (r"(#.*\n|\s)*# /// script", SCRIPT),
    (
        PIP_TABLE,
        "it is the table of 'pip list', which does not say what came from git: give the output "
        "of 'pip freeze'",
    ),
    (CONDA_TABLE, "it is the table of 'conda list': give the output of 'conda list --json'"),
    (
        CONDA_SPECS,
        "it is a list for 'conda create --file': create the environment, and give the output of "
        "'conda list --json'",
    ),
)
"""By what a text begins with."""


def by_name(name: str) -> str:
    """What to do instead of reading a file with this name; empty for a file to read."""
    lower = name.lower()
    return next((why for pattern, why in NAMES if re.fullmatch(pattern, lower)), "")


def by_text(path: Path, text: str) -> str:
    """What to do instead of reading this text; empty for a text to read."""
    start = text[:10_000]
    is_yaml = path.suffix in (".yml", ".yaml")
    if is_yaml and re.search(JOBS, start, re.M) and not re.search(DECLARES, text, re.M):
        return COMMANDS
    return next((why for pattern, why in TEXTS if re.match(pattern, start)), "")
