"""`python -m relay` is the command `relay`."""

from relay.cli.main import main

main()
