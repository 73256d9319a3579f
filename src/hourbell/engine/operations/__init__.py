"""User requests: changes of jobs, runs on request, settings, keys and secrets.

Each takes a `Write` (`idempotency`): the actor, and the idempotency key under which a repeated
request gets the first answer.
"""
