"""UNFINISHED: does the library do what it should? One question.

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

if __name__ == "__main__":
    is_wrong = False  # UNFINISHED: call the library, and compare
    print("UNFINISHED: what the library did, and what is right")
    print("WRONG:" if is_wrong else "right:", "UNFINISHED")
    raise SystemExit(3 if is_wrong else 0)
