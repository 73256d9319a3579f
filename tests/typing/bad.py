"""Calls that type checkers refuse: each line with `# E` must be an error, and no other line may be."""

from hourbell import NONE, App, Context, Item, Retry, every

app = App("shop")


@app.task
async def plain(cart_id: int) -> str:
    return str(cart_id)


@app.task
async def with_context(ctx: Context, cart_id: int, *, lang: str = "en") -> None: ...


@app.task(queue="mail", retry=Retry.never())
def several(*ids: int) -> None: ...


@app.batch_task(size=10)
async def index(items: list[Item[str]]) -> list[int]:
    return [len(item.value) for item in items]


@app.task
async def waits(ctx: Context) -> None:
    await ctx.wait_for_completion()  # E
    await ctx.complete(7)  # E
    number: str = (await ctx.wait_for_completion(timeout=1)).timed_out  # E
    assert number


async def main() -> None:
    await index.enqueue(7)  # E
    await index.enqueue("a", "b")  # E
    text: str = await (await index.enqueue("a")).result(5)  # E
    app.batch_task(sise=10)  # E
    app.batch_task(by="queue")  # E
    app.task(process="yes")  # E
    app.task(unique="cart:7")  # E
    app.task(concurrency_key=7)  # E
    plain.configure(expires_in="soon")  # E
    assert text
    await plain.enqueue("7")  # E
    await plain.enqueue()  # E
    plain.enqueue(7)  # E
    app.enqueue_many([plain.bind(7)])  # E
    await plain.enqueue(7, 8)  # E
    await plain.enqueue(cart=7)  # E
    await plain.enqueue(cart_id=7, delay=5)  # E
    plain.enqueue_sync("7")  # E
    plain.bind("7")  # E
    await plain("7")  # E
    await with_context.enqueue(7, "de")  # E
    await with_context.enqueue(7, lang=1)  # E
    await several.enqueue("1")  # E
    plain.configure(dealy=5)  # E
    plain.configure(priority="URGENT")  # E
    plain.configure(retry=3)  # E
    plain.configure(on_duplicate="ignore")  # E
    plain.configure(queue=NONE)  # E
    app.task(retry=NONE)  # E
    app.task(queues="mail")  # E
    every(60, notifications=[{"on": ["dead"], "url": "https://chat.example"}])  # E
    number: int = (await plain.enqueue(7)).id  # E
    result: int = await (await plain.enqueue(7)).result(5)  # E
    assert number, result
