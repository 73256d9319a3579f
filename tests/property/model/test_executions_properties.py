from hypothesis import given
from hypothesis import strategies as st

from hourbell.model.executions import FATES, TRANSITIONS, ExecutionStatus


@given(st.data())
def test_a_walk_through_the_states_stops_at_a_fate_and_nowhere_else(data: st.DataObject):
    status: ExecutionStatus | None = None
    for _ in range(200):
        ways = sorted(to for to in ExecutionStatus if to in TRANSITIONS[status])
        assert (not ways) == (status in FATES)
        if not ways:
            break
        status = data.draw(st.sampled_from(ways))
        assert status in TRANSITIONS
