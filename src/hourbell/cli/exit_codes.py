"""The exit codes of commands. `docs/cli.md` says what each means."""

DONE = 0
REFUSED = 1  # by the server, by a check or by the user; or given up
USAGE = 2  # nothing was changed
NOT_FOUND = 3
DENIED = 4
CONFLICT = 5
UNAVAILABLE = 6  # a write may have taken effect
INTERRUPTED = 130
TERMINATED = 143
