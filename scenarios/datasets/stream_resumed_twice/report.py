"""Stop and resume a stream twice: does the second resume go on behind the second stop?

Needs torch and datasets, and no GPU. The exit code is 3 if the bug is there."""

import itertools

import datasets

print("datasets", datasets.__version__)
state, begins = None, []
for part in ("the run", "the first resume", "the second resume"):
    rows = datasets.Dataset.from_dict({"row": list(range(20))})
    stream = rows.to_iterable_dataset(num_shards=2)
    if state:
        stream.load_state_dict(state)
    numbers = [row["row"] for row in itertools.islice(stream, 4)]
    state = stream.state_dict()
    begins.append(numbers[0])
    print(f"{part} reads {numbers}, and saves a state")
has_bug = begins != [0, 4, 8]
print(
    "WRONG: the second resume begins again" if has_bug else "right: each goes on where it stopped"
)
raise SystemExit(3 if has_bug else 0)
