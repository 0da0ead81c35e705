"""Run all bugs on each stack, and write the answers."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.check.stacks import HERE, STACKS, requirements


def main(stacks: list[str]) -> None:
    for stack in stacks or STACKS:
        words = ["check", "--run", "--json", "lane=cpu", "-r", requirements(stack)]
        process = subprocess.run(
            [sys.executable, "-m", "harness", *words], stdout=subprocess.PIPE, text=True
        )
        bugs = json.loads(process.stdout)["bugs"]
        answers = {bug["name"]: bug["status"] for bug in bugs if bug["how"] == "ran"}
        text = json.dumps(answers, indent=1, sort_keys=True)
        (HERE / f"{stack}.json").write_text(text + "\n")
        print(f"{stack}: {len(answers)} answers")


if __name__ == "__main__":
    main(sys.argv[1:])
