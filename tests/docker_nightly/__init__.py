"""The container test: builds the image, runs nightlies in it, and checks what they leave.

    make docker
    python -m tests.docker_nightly [--where-possible] [SCENARIO ...]

Needs a Docker engine that can build with BuildKit. Exit codes: 0 all checks pass, 1 one fails, 4
there is no engine or no torch for the CPU, with the reason. With ``--where-possible`` the last is
0, too.
"""
