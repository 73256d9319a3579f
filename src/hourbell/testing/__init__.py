"""The testing kit: virtual time for tests of Hourbell and of applications built on it.

All time-based decisions in Hourbell use one SQL function, `hourbell.clock()`, which only reads the
database's clock. If that function is replaced, the whole engine uses virtual time: schedules fire,
leases expire and retries become due when the test says so. Nothing else is replaced; the database
and its transactions are real.

    clock = await VirtualClock.install(database, at)
    engine = Engine(database, clock)
    ...
    await clock.advance(timedelta(hours=1))     # an hour has passed, without waiting

A clock can change in two ways. Time *passes* (`set`, `advance`): the wall clock and the monotonic
clock advance together, never backwards. Or the wall clock *steps*, when it is corrected or after a
failover to a machine with a different clock: it may go backwards, and the monotonic clock does not
change. To simulate an outage, let time pass without calling the engine.

Use the kit only on a dedicated test database: it replaces that database's clock permanently.
"""
