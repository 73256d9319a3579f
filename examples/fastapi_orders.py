"""A FastAPI service whose orders and confirmation mails are committed together.

The order is inserted and its mail is enqueued on one connection, in one transaction: there is no order without a mail, and no mail for
an order that was rolled back. The transaction is committed before the answer is sent, so a client that reads the answer can rely on both.

    pip install "hourbell[server,embedded]" fastapi uvicorn
    hourbell up fastapi_orders:app                       # in one terminal: PostgreSQL, and a worker for the mails
    uvicorn fastapi_orders:web --port 8000               # in another
    curl -s http://127.0.0.1:8000/orders -H 'Content-Type: application/json' -d '{"customer": "Ada", "cents": 4200}'
    curl -s http://127.0.0.1:8000/orders/1
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, PositiveInt

from hourbell import App, Context

ORDERS = """
create table if not exists orders (
  id int generated always as identity primary key, customer text, cents int, mailed bool default false
)
"""


@asynccontextmanager
async def orders_pool(app: App) -> AsyncIterator[list[object]]:
    """Connections for the handlers of the worker, and for those of the web server."""
    async with asyncpg.create_pool(app.database_url, min_size=1, max_size=4) as pool:
        yield [pool]


app = App("orders", lifespan=orders_pool)


@app.task(timeout=30)
async def send_confirmation(ctx: Context, order_id: int) -> None:
    ctx.log.info("mail sent", order=order_id)
    await ctx.get(asyncpg.Pool).execute("update orders set mailed = true where id = $1", order_id)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with app, orders_pool(app) as (pool,):
        await pool.execute(ORDERS)
        yield {"pool": pool}


web = FastAPI(lifespan=lifespan)


async def connection(request: Request) -> AsyncIterator[asyncpg.Connection]:
    async with request.state.pool.acquire() as conn:
        yield conn


Connection = Annotated[Any, Depends(connection)]


class NewOrder(BaseModel):
    customer: str
    cents: PositiveInt


@web.post("/orders", status_code=201)
async def create_order(order: NewOrder, conn: Connection) -> dict[str, Any]:
    # The transaction is here and not in the dependency: FastAPI ends dependencies after the answer was sent.
    async with conn.transaction():
        order_id = await conn.fetchval(
            "insert into orders (customer, cents) values ($1, $2) returning id",
            order.customer,
            order.cents,
        )
        job = await send_confirmation.configure(connection=conn).enqueue(order_id)
        if order.cents > 1_000_000:
            raise HTTPException(422, "Orders of more than 10,000 need a phone call.")  # rolls back
    return {"order_id": order_id, "mail": job.id}


@web.get("/orders/{order_id}")
async def read_order(order_id: int, conn: Connection) -> dict[str, Any]:
    row = await conn.fetchrow("select * from orders where id = $1", order_id)
    if row is None:
        raise HTTPException(404, "There is no such order.")
    return dict(row)
