"""`python -m hourbell`, the same as `hourbell`."""

from hourbell.cli.main import main

main()
