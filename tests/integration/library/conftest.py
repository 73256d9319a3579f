"""A database for each module, emptied before each test, as for the life of an execution."""

from integration.life.conftest import cleaner as cleaner
from integration.life.conftest import database as database
from integration.life.conftest import engine as engine
