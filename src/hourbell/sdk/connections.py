"""The connections of users, in whose transactions jobs are enqueued.

The adapters of the drivers are those of the guard, which may import nothing of the library; they are
loaded when the first connection is given. This module says in the words of the library what cannot
be done with a connection.
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
    """A connection of a user."""

    def __init__(self, own: Blocking | Asynchronous) -> None:
        self._own = own

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        """The rows of a statement, as tuples. `{}` in the statement is the place of an argument.

        Raises NotInTransaction. A sync connection does not suspend.
        """
        with _explained():
            found = self._own.fetch(statement, arguments)
            return found if isinstance(found, list) else await found


def user_connection(connection: Any, blocking: bool) -> UserConnection:
    """The adapter of a connection, for an async or a blocking call; raises WrongConnection."""
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
    """Errors of a driver that mean that the connection or its database was not prepared."""
    from hourbell.guard.drivers import Autocommit, UnknownConnection, sqlstate

    try:
        yield
    except UnknownConnection as error:
        raise WrongConnection(str(error)) from None
    except Autocommit:
        raise NotInTransaction(
            "connection= is in autocommit: the job would stay if your writes are rolled back. Begin "
            "a transaction, or leave connection= out."
        ) from None
    except Exception as error:
        code = sqlstate(error)
        if code in _MISSING:
            raise NotMigrated(
                'The database of connection= has no schema "hourbell" of this version. Run '
                '"hourbell migrate" on it, or use a connection to the database of the app.'
            ) from error
        if code == _NO_PRIVILEGE:
            raise ConfigurationError(
                "The role of connection= may not enqueue. Allow it once: "
                '"hourbell migrate --grant-enqueue-to ROLE".'
            ) from error
        raise
