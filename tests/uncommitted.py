"""A database in which a change of a job can be stopped between its effect and its commit.

In the product such a change is one statement that commits by itself: no client can stop inside it. Other transactions meet
it there nevertheless, while the server works. Here the statement has a transaction around it, and stands at a point of its
own before the commit, with all its locks.
"""

from __future__ import annotations

from hourbell import failpoints
from hourbell.store.database import Database

UNCOMMITTED = "change.uncommitted"
POINTS = (*failpoints.NAMES, UNCOMMITTED)
CHANGES = ("update", "pause", "resume", "delete", "cancel")  # operations that stand there
_STATEMENTS = ("hourbell.change_job(", "hourbell.run_one_time(", "hourbell.cancel_execution(")


class UncommittedDatabase(Database):
    async def row(self, statement: str, *args: object):  # type: ignore[no-untyped-def]
        if not any(each in statement for each in _STATEMENTS):
            return await super().row(statement, *args)
        async with self.transaction() as connection:
            row = await connection.fetchrow(statement, *args)
            await failpoints.failpoint(UNCOMMITTED)
            return row
