"""A fuzzer of grading: it damages recorded runs, grades them, and audits each result.

Faults (``faults``) damage files and processes, records that stay well-formed, and run.json. The
audit (``audit``) does not use the harness's grading: it reads the files itself and compares them
with the undamaged run.

    python -m tests.fuzz --count 50000 --seed 7
"""
