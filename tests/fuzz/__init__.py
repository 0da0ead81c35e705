"""A fuzzer of grading: recorded runs are spoilt, and an audit says what a careful person would.

Three kinds of faults (``faults``): of files and processes, of records that are odd but well
written, and of run.json. The audit (``audit``) does not use the harness's own grading: it reads the
files by itself, and compares them with those of the run as it was.

    python -m tests.fuzz --count 50000 --seed 7
"""
