"""What ``import distributed_bugs`` offers to scripts, notebooks and pytest: docs/python.md.

It runs in the user's process, in which no other module of the harness is imported but those of
``rank/guard``: so it needs the standard library only, and its imports are relative, as the package
is ``distributed_bugs.harness`` there. ``check`` and ``probe`` start the command.
"""
