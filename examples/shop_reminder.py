"""Remind a customer 24 hours after a cart was left, unless the cart is bought before that.

The shop's own table is in the database of Hourbell, so one transaction changes both. The reminder exists if and only if the
cart does, and the purchase cancels it in the transaction of the buyer: if the payment fails and that transaction is rolled back,
the reminder stays. Nothing has to be tidied up afterwards, also if a process dies half-way.

    pip install "hourbell[embedded]"
    A_DAY=3 python shop_reminder.py     # a day of 3 seconds; without A_DAY it lasts 24 hours
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from hourbell import App, Cancel, Context, Job, Retry

A_DAY = float(os.environ.get("A_DAY", 24 * 60 * 60))


@asynccontextmanager
async def tables(app: App) -> AsyncIterator[list[object]]:
    """A pool of connections for the handlers: what is yielded here is what `ctx.get` finds."""
    async with asyncpg.create_pool(app.database_url, min_size=1, max_size=4) as pool:
        await pool.execute(
            "create table if not exists carts (id int primary key, customer text, paid bool)"
        )
        yield [pool]


# Its own PostgreSQL, unless HOURBELL_DATABASE_URL names yours.
app = App("shop", embedded=True, lifespan=tables)


@app.task(retry=Retry.exponential(max_retries=5, initial=60), timeout=30)
async def send_reminder(ctx: Context, cart_id: int) -> str:
    cart = await ctx.get(asyncpg.Pool).fetchrow("select * from carts where id = $1", cart_id)
    if cart is None or cart["paid"]:
        raise Cancel("there is nothing to remind of")
    print(f"  mail to {cart['customer']}: your cart {cart_id} is still waiting for you")
    return cart["customer"]


async def leave_cart(pool: asyncpg.Pool, cart_id: int, customer: str) -> Job[str]:
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("insert into carts values ($1, $2, false)", cart_id, customer)
        job = await send_reminder.configure(
            delay=A_DAY, unique_key=f"cart:{cart_id}", on_duplicate="replace", connection=conn
        ).enqueue(cart_id)
    print(f"{customer} leaves cart {cart_id}")
    return job


async def buy_cart(pool: asyncpg.Pool, cart_id: int, payment_works: bool = True) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("update carts set paid = true where id = $1", cart_id)
        cancelled = await send_reminder.cancel(unique_key=f"cart:{cart_id}", connection=conn)
        if not payment_works:
            raise RuntimeError("the bank refuses the card")
    print(f"cart {cart_id} is bought, its reminder is {cancelled}")


async def main() -> None:
    # Everything in one process here. A shop enqueues in its web server, and starts as many workers
    # as it needs with `hourbell worker shop_reminder:app`.
    async with app, app.worker(), tables(app) as (pool,):
        await pool.execute("truncate carts")
        customers = ["Ada", "Grace", "Linus"]
        jobs = [await leave_cart(pool, number, name) for number, name in enumerate(customers, 1)]
        await buy_cart(pool, 1)
        try:
            await buy_cart(pool, 3, payment_works=False)
        except RuntimeError as error:
            print(f"cart 3 is not bought: {error}")
        print(f"{A_DAY:g} seconds later:")
        for number, job in enumerate(jobs, 1):
            fate = await job.wait(timeout=A_DAY + 60)
            print(f"reminder of cart {number}: {fate}")


if __name__ == "__main__":
    asyncio.run(main())
