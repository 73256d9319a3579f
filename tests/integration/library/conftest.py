"""A database for each module, emptied before each test, as for the life of an execution."""

from integration.life.conftest import database as database
from integration.life.conftest import database_of_module as database_of_module
from integration.life.conftest import engine as engine
