"""Members of a group, in requests that the API accepts."""

from typing import Any

import msgspec
import pytest

from hourbell.client.resources import MAX_MEMBERS_ADDED, Groups
from hourbell.documents.execution_groups import MAX_ADDED


def test_more_members_than_a_request_may_have_are_added_by_several() -> None:
    assert MAX_MEMBERS_ADDED == MAX_ADDED
    jobs = [f"job_{number}" for number in range(MAX_ADDED + 1)]
    plan: Any = Groups.add.plan(None, "grp_1", job_ids=jobs, execution_ids=["exe_1"])
    first, second = next(plan), plan.send("the group, so far")
    with pytest.raises(StopIteration) as ended:
        plan.send("the group")
    assert ended.value.value == "the group"
    bodies = [msgspec.json.decode(call.body) for call in (first, second)]
    assert bodies[0] == {"job_ids": jobs[:MAX_ADDED], "execution_ids": ["exe_1"]}
    assert bodies[1] == {"job_ids": jobs[MAX_ADDED:], "execution_ids": []}
