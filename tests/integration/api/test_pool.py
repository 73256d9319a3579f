"""More writes at once than there are connections: none may need a second one while it holds its first."""

import asyncio

from integration.api.client import Client, one_time, recurring


async def test_more_patches_at_once_than_connections_do_not_wait_for_each_other(api: Client):
    jobs = [await api.created(recurring()) for _ in range(40)]
    async with asyncio.timeout(60):
        answers = await asyncio.gather(
            *(
                api.patch(job["path"], {"queue": f"q{number}", "schedule": {"cron": "0 4 1 1 *"}})
                for number, job in enumerate(jobs)
            )
        )
    assert {answer.status for answer in answers} == {200}


async def test_more_creates_at_once_than_connections_do_not_wait_for_each_other(api: Client):
    async with asyncio.timeout(60):
        answers = await asyncio.gather(
            *(
                api.post("/api/v1/jobs", one_time(queue=f"q{number}", tenant_id=f"t{number}"))
                for number in range(40)
            )
        )
    assert {answer.status for answer in answers} == {201}
