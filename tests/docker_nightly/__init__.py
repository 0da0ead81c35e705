"""The container, really run: built, nights run in it, and what they leave checked.

    make docker
    python -m tests.docker_nightly [--where-possible] [--keep DIR] [SCENARIO ...]

Where no engine answers, root gets Debian's docker.io, and a dockerd that ends with this command;
where no registry answers, a base image is made by debootstrap. Exit codes: 0 all is as it should
be, 1 something is not, 4 no engine or base image can be had here, with the reason; that is 0, too,
with ``--where-possible``, which CI says.
"""
