"""The work of one process for all: leadership (`term`), and the leader's loops."""
