"""Faults by the hundred: scenarios run through the command line while they are disturbed.

    python -m tests.chaos --faults 200 --seed 1 --out FOLDER

Each fault must come out in one of its documented ways: ``kinds`` says which there are, ``case``
what is asked of all of them.
"""
