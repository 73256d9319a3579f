"""The guard, for webhook receivers: is a request genuine, and has its work already been done?

    guard = Guard(["whsec_…"])

    async def hook(request):
        delivery = guard.verify(request.headers, await request.body())
        async with pool.acquire() as connection, connection.transaction():
            async with guard.once(connection, delivery) as turn:
                if not turn.done:
                    await connection.execute("insert into payments …")
                    turn.answer = {"paid": 7}
        return turn.answer

`verify` checks signature and age. `once` records the execution in a table in the receiver's own
database, in the same transaction as the receiver's work: both commit, or neither. A delivery
of an execution that is already done gets the recorded answer. One from a worker that has
meanwhile lost the execution is rejected. One that arrives while another is in progress waits
for it. `guard.ddl()` returns the statements that create the table.

    GuardError
    ├── BadSignature        401   not signed with one of the secrets, or changed in transit
    ├── TooOld              401   sent too long ago, or the clocks differ
    ├── StaleFence          409   a later attempt has been seen: the sender has lost the execution
    ├── InProgress          503   another delivery of the execution is in progress: retry
    └── NoTransaction       500   the receiver did not begin a transaction

    deliveries   Guard: verification, and the record of what has been done
    middleware   the same for ASGI applications
    drivers      how a statement runs on a connection of each driver
    clock        the receiver's clock

This package needs only the standard library and imports nothing else of Hourbell.
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
