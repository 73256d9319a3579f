"""What the tests of rate limits share: whether starts keep to a limit, and reach it."""

from collections.abc import Sequence

from hourbell.model.limits import RateLimit

# The moment that a claim gives an execution for its start is kept when its lease ends.
KEEP_STARTS = """
create table if not exists hourbell.kept_starts (id bigint not null, at timestamptz not null);
create or replace function hourbell.keep_start() returns trigger language plpgsql as
$$ begin insert into hourbell.kept_starts select unnest(old.ids), old.claimed_at; return null; end $$;
create or replace trigger keep_start after delete on hourbell.leased for each row execute function hourbell.keep_start();
"""


def needed_burst(starts: Sequence[float], rate: float) -> float:
    """The burst that these starts need: of all windows, the most starts beyond rate * its length."""
    most, lowest = 0.0, 0.0
    ordered = sorted(starts)
    for number, moment in enumerate(ordered):
        level = number - rate * (moment - ordered[0])
        lowest = min(lowest, level)
        most = max(most, level + 1 - lowest)
    return most


def check_starts(starts: Sequence[float], limit: RateLimit, share: float = 0.97) -> None:
    """No window has more starts than the limit allows, and this share of its rate is reached.

    The rate is that of the best tenth of the starts, at least ten of them, or the best half if there are few: starts that a
    busy machine delays do not decide it, and a limit that loses time at every start never reaches it.
    """
    assert needed_burst(starts, limit.per_second) <= limit.burst + 1e-3, limit
    steady = starts[limit.burst :]
    part = max(len(steady) // 10, min(10, len(steady) // 2))
    reached = max(part / (last - first) for first, last in zip(steady, steady[part:], strict=False))
    assert reached >= share * limit.per_second, (limit, reached)
