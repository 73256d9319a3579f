"""Enqueue in the transaction of a SQLAlchemy session.

`configure(connection=session)` takes an AsyncSession, a Session (with `enqueue_sync`), or a connection of either. The job is a part of
the session's transaction: it is committed with the order, and rolled back with it. Flush before you enqueue, so that the order has
an id. A savepoint works as expected: what is rolled back to it takes its jobs with it.

    pip install "hourbell[embedded,sqlalchemy]"
    python sqlalchemy_orders.py
"""

import asyncio

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

from hourbell import App

app = App("orders", embedded=True)


class Base(MappedAsDataclass, DeclarativeBase): ...


class Order(Base):
    __tablename__ = "sqlalchemy_orders"
    id: Mapped[int] = mapped_column(primary_key=True, init=False)
    customer: Mapped[str]


@app.task
async def send_confirmation(order_id: int, customer: str) -> str:
    return f"mail to {customer}: thank you for order {order_id}"


async def place_order(session: AsyncSession, customer: str, is_paid: bool) -> None:
    async with session.begin():
        order = Order(customer=customer)
        session.add(order)
        await session.flush()
        job = await send_confirmation.configure(connection=session).enqueue(order.id, customer)
        if not is_paid:
            raise ValueError("not paid")
    print(f"order {order.id} of {customer} is committed; {await job.result(timeout=30)}")


async def main() -> None:
    async with app, app.worker():
        # The scheme names the driver; psycopg works as well.
        url = app.database_url.replace("postgresql://", "postgresql+asyncpg://")
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine, expire_on_commit=False) as session:
            await place_order(session, "Ada", is_paid=True)
            try:
                await place_order(session, "Grace", is_paid=False)
            except ValueError as error:
                print(f"the order of Grace is rolled back, and its mail with it: {error}")
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
