"""`python -m compeer`: the command line."""

from compeer.cli import main

main()
