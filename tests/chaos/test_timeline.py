"""An old primary that comes back is not taken for the database."""

import asyncio
from pathlib import Path

from chaos.postgres import Pair, dsn_at
from chaos.proxy import Proxy, Reset
from hourbell.model.errors import StoreUnavailable
from hourbell.store.database import Database


async def test_a_server_of_an_older_timeline_is_refused(tmp_path: Path) -> None:
    pair = await Pair.start(tmp_path, synchronous=False)
    name = await Proxy.open("name→postgres", "127.0.0.1", pair.primary_port)

    async def leads_to(port: int) -> None:
        name.retarget("127.0.0.1", port)
        await name.switch(Reset())

    async def asked() -> str:
        """The port of the server that answers, or why none does."""
        try:
            return str(await database.value("show port"))
        except StoreUnavailable as error:
            return error.message

    async def until(wanted: str) -> set[str]:
        heard: set[str] = set()
        async with asyncio.timeout(20):
            while not any(wanted in answer for answer in heard):
                heard.add(await asked())
        return heard

    try:
        database = await Database.open(dsn_at(name.port), connections=2)
        old = pair.primary_port
        assert await asked() == str(old)
        await pair.failover(kill=True)
        await leads_to(pair.primary_port)
        await until(str(pair.primary_port))

        await pair.resurrect_old_primary()
        await leads_to(old)
        assert str(old) not in await until("a former primary has come back")
        await leads_to(pair.primary_port)
        assert str(old) not in await until(str(pair.primary_port))
        await database.close()
    finally:
        await name.close()
        await pair.stop()
