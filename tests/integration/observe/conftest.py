"""A database for each module, and connections that stay open from test to test, as for the library."""

from integration.library.conftest import _keeps_connections_open as _keeps_connections_open
from integration.library.conftest import cleaner as cleaner
from integration.library.conftest import database as database
