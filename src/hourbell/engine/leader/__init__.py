"""What one process does for all: leadership (`term`), and the loops that plan, admit, reap and keep house."""
