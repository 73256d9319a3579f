"""Users' connections, in whose transactions jobs are enqueued.

The driver adapters come from the guard, which must not import anything of the library; they are
loaded when the first connection is passed. This module turns their errors into those of the
library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hourbell.errors import ConfigurationError, NotInTransaction, NotMigrated, WrongConnection

if TYPE_CHECKING:
    from hourbell.guard.drivers import Asynchronous, Blocking

_MISSING = ("42883", "3F000", "42P01")  # function, schema, table
_NO_PRIVILEGE = "42501"


class UserConnection:
    """A connection passed by the user."""

    def __init__(self, own: Blocking | Asynchronous) -> None:
        self._own = own

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        """The rows of a statement, as tuples. `{}` in the statement marks an argument.

        Raises NotInTransaction. With a sync connection, this never suspends.
        """
        with _explained():
            found = self._own.fetch(statement, arguments)
            return found if isinstance(found, list) else await found


def user_connection(connection: Any, blocking: bool) -> UserConnection:
    """The adapter for a connection, for an async or a blocking call; raises WrongConnection."""
    from hourbell.guard.drivers import Asynchronous, Blocking, connection_of, kind_of

    with _explained():
        own = connection_of(connection)
    if isinstance(own, Asynchronous) and blocking:
        raise WrongConnection(
            f"connection= is an asynchronous {kind_of(connection)}: await the version of this method "
            f"without `_sync`."
        )
    if isinstance(own, Blocking) and not blocking:
        raise WrongConnection(
            f"connection= is a synchronous {kind_of(connection)}: call the `_sync` version of this "
            f"method."
        )
    return UserConnection(own)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn driver errors about an unprepared connection or database into the library's own."""
    from hourbell.guard.drivers import Autocommit, UnknownConnection, sqlstate

    try:
        yield
    except UnknownConnection as error:
        raise WrongConnection(str(error)) from None
    except Autocommit:
        raise NotInTransaction(
            "connection= is in autocommit mode, so the job would remain if your writes were rolled back. Begin "
            "a transaction, or leave out connection=."
        ) from None
    except Exception as error:
        code = sqlstate(error)
        if code in _MISSING:
            raise NotMigrated(
                'The database of connection= lacks the "hourbell" schema of this version. Run '
                '"hourbell migrate" on it, or use a connection to the app\'s database.'
            ) from error
        if code == _NO_PRIVILEGE:
            raise ConfigurationError(
                "The role of connection= is not allowed to enqueue. Grant it once with "
                '"hourbell migrate --grant-enqueue-to ROLE".'
            ) from error
        raise
