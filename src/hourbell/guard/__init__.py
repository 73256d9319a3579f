"""The guard, for receivers of webhooks: is a request genuine, and has its work been done already?

    guard = Guard(["whsec_…"])

    async def hook(request):
        delivery = guard.verify(request.headers, await request.body())
        async with pool.acquire() as connection, connection.transaction():
            async with guard.once(connection, delivery) as turn:
                if not turn.done:
                    await connection.execute("insert into payments …")
                    turn.answer = {"paid": 7}
        return turn.answer

`verify` checks signature and age. `once` records the execution in a table of the receiver's own
database, in the same transaction as the receiver's work: both are committed, or neither. A
delivery of an execution that has been done gets the recorded answer; one that comes from a worker
which has lost the execution meanwhile is refused; one that comes while another is in progress waits
for it. `guard.ddl()` creates the table.

    GuardError
    ├── BadSignature        401   not signed with one of the secrets, or changed on its way
    ├── TooOld              401   sent too long ago, or the clocks differ
    ├── StaleFence          409   a later attempt has been seen: the sender has lost the execution
    ├── InProgress          503   another delivery of the execution is in progress: retry
    └── NoTransaction       500   the receiver has not begun a transaction

    deliveries   Guard: verification, and the record of what was done
    middleware   the same for ASGI applications
    drivers      how a statement runs on a connection of each driver
    clock        the receiver's clock

This package needs only the standard library, and imports nothing of Hourbell.
"""

from hourbell.guard.deliveries import (
    BadSignature,
    Delivery,
    Guard,
    GuardError,
    InProgress,
    NoTransaction,
    StaleFence,
    TooOld,
    Turn,
)
from hourbell.guard.middleware import GuardMiddleware

__all__ = [
    "BadSignature",
    "Delivery",
    "Guard",
    "GuardError",
    "GuardMiddleware",
    "InProgress",
    "NoTransaction",
    "StaleFence",
    "TooOld",
    "Turn",
]
