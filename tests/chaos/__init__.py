"""Chaos: runs scenarios through the command line and disturbs them, hundreds of times.

    python -m tests.chaos --faults 200 --seed 1 --out FOLDER

Each fault must end in one of its documented ways. ``kinds`` lists the faults; ``case`` checks what
holds for all of them.
"""
