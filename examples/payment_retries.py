"""Retry a payment after 1, 5 and 30 minutes, and only where a retry can help.

A bank that does not answer is asked again by the retry policy. A card that was declined is not: that error becomes a dead letter
at once, which a person can look at and replay. A bank that has charged the card and then did not answer is the dangerous case:
the execution id, the same for every attempt, is the idempotency key for the bank, so the card is charged once.

    pip install "hourbell[embedded]"
    MINUTE=0.1 python payment_retries.py    # a minute of 0.1 seconds, each delay at least 1; without MINUTE it lasts 60 seconds
"""

import asyncio
import os

from hourbell import App, Context, Retry

MINUTE = float(os.environ.get("MINUTE", 60))
DELAYS = [max(1, round(minutes * MINUTE)) for minutes in (1, 5, 30)]


class CardDeclined(Exception): ...


class Bank:
    """Stands for the API of a bank, with its bad days."""

    def __init__(self) -> None:
        self.charged: dict[str, str] = {}  # by idempotency key
        self.asked: dict[str, int] = {}

    async def charge(self, card: str, idempotency_key: str) -> None:
        self.asked[card] = self.asked.get(card, 0) + 1
        if card == "stolen card":
            raise CardDeclined("the card is blocked")
        if card == "card of a bank that is down" or (card == "slow card" and self.asked[card] < 3):
            raise ConnectionError("the bank does not answer")
        self.charged[idempotency_key] = card  # a second charge under the same key changes nothing
        if card == "unlucky card" and self.asked[card] == 1:
            raise ConnectionError("the bank charged the card, but its answer was lost")


app = App("payments", embedded=True, state=[Bank()])


@app.task(retry=Retry.delays(*DELAYS), no_retry=[CardDeclined], timeout=20)
async def charge(ctx: Context, card: str) -> str:
    try:
        await ctx.get(Bank).charge(card, idempotency_key=ctx.execution_id)
    except Exception as error:
        print(f"  {card}, attempt {ctx.attempt}: {error}")
        raise
    print(f"  {card}, attempt {ctx.attempt}: charged")
    return card


async def main() -> None:
    cards = ["good card", "slow card", "unlucky card", "stolen card", "card of a bank that is down"]
    print(f"Failed payments are retried after {', '.join(map(str, DELAYS))} seconds.")
    async with app, app.worker():
        jobs = await app.enqueue_many(charge.bind(card) for card in cards)
        for job in jobs:
            await job.wait(timeout=sum(DELAYS) + 60)
        for card, job in zip(cards, jobs, strict=True):
            seen = await job.get()
            why = f" ({seen.reason}: {seen.error})" if seen.reason else ""
            print(f"{card}: {seen.status}{why}")
        charged = app.state[0].charged
        print(f"Charged: {', '.join(sorted(charged.values()))}; each once.")


if __name__ == "__main__":
    asyncio.run(main())
