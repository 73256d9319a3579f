"""The work of one process for all: leadership (`term`), and the plan, admit, reap and other loops."""
