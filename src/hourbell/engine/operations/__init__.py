"""What people ask for: changes of jobs, runs on request, settings, keys and secrets.

Each takes a `Write` (`idempotency`): who asks, and the key under which the same request is answered only once.
"""
