"""Bill 50,000 customers, each at midnight of their own time zone.

Every customer has a recurring job in their zone and a tenant of their own, so that no customer's backlog delays another's. The
jobs are data, not code: they are created over the API, 10,000 with each request, and running this program again keeps them. When
clocks change, each job follows the written rule: in Beirut, where one midnight of the year does not exist, the bill is made at
the first moment after it.

    pip install "hourbell[server,embedded]"
    HOURBELL_DATA_DIR=/tmp/billing hourbell up billing:app       # in one terminal
    CUSTOMERS=50000 python billing.py                            # in another; 50,000 is the default
    hourbell forecast --hours 24                                 # draws the load of the coming day
    hourbell next "0 0 * * *" --timezone Asia/Beirut --from 2027-03-27T12:00:00Z --count 2
"""

import os
import sys
import time
from collections.abc import Iterator

from hourbell import App, Context, Retry
from hourbell.client import CreatedJob, NewJob, RefusedJob, SyncClient, Task, cron

CUSTOMERS = int(os.environ.get("CUSTOMERS", "50000"))
# Where the customers are, and how many of each ten.
ZONES = [
    *3 * ["America/New_York"],
    *2 * ["Europe/Berlin"],
    "Asia/Beirut",
    "Asia/Kathmandu",  # 5:45 ahead of UTC
    "Asia/Kolkata",
    "Asia/Tokyo",
    "Australia/Lord_Howe",  # changes its clocks by half an hour
]

app = App("billing")


@app.task(queue="billing", retry=Retry.exponential(max_retries=8, initial=60), timeout=60)
async def bill(ctx: Context, customer: int) -> str:
    # The execution id is the same for all attempts: the invoice cannot be made twice under it.
    return f"invoice {ctx.execution_id} for customer {customer}"


def jobs() -> Iterator[NewJob]:
    for customer in range(CUSTOMERS):
        yield NewJob(
            name=f"bill-{customer}",
            tenant_id=f"customer-{customer}",
            queue="billing",
            schedule=cron("0 0 * * *", timezone=ZONES[customer % len(ZONES)]),
            action=Task(name="billing.bill", payload={"customer": customer}),
            unique_key="bill",  # of the tenant
            on_duplicate="keep",
            misfire_policy="all",  # a bill that was missed is made later, …
            catch_up_window_seconds=30 * 86_400,  # … also after an outage of up to 30 days
        )


def main() -> None:
    url = os.environ.get("HOURBELL_URL", "http://127.0.0.1:8080")
    with SyncClient(url, api_key=os.environ.get("HOURBELL_API_KEY")) as client:
        began = time.monotonic()
        results = client.jobs.create_many(jobs())
        if refused := [result.detail for result in results if isinstance(result, RefusedJob)]:
            sys.exit(f"{len(refused):,} jobs were refused, such as this one: {refused[0]}")
        made = [result.job_id for result in results if isinstance(result, CreatedJob)]
        print(f"{len(made):,} customers have their job, after {time.monotonic() - began:.1f} s.")
        print("The next bills of the first customer in each zone:")
        for zone in dict.fromkeys(ZONES):
            runs = client.jobs.next_runs(made[ZONES.index(zone)], count=2).items
            print(
                f"  {zone:20} {' and '.join(f'{run.scheduled_for:%d %b %H:%M %z}' for run in runs)}"
            )
        forecast = client.cell.forecast(hours=24)
        total = sum(minute.executions for minute in forecast.minutes)
        busiest = max(forecast.minutes, key=lambda minute: minute.executions)
        print(f"{total:,} bills are due in the next 24 hours, in {len(forecast.minutes)} minutes;")
        print(f"the busiest is {busiest.at:%H:%M} UTC with {busiest.executions:,}.")
        print("One bill now, without waiting for midnight:")
        (execution_id,) = client.jobs.run(made[0]).execution_ids
        while (execution := client.executions.get(execution_id)).finished_at is None:
            time.sleep(0.1)
        print(f"  {execution.status}: {execution.result}")


if __name__ == "__main__":
    main()
