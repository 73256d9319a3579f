"""The testing kit: time travel for tests of whatever is built on Hourbell, and for Hourbell's own.

Everything in Hourbell that is decided by time is decided by one SQL function, `hourbell.clock()`, which only reads the
database's clock. Replace that function, and the whole engine lives in another time: timetables fire, leases run out and
retries fall due when the test says so. Nothing else is replaced; the database is a real one, and so are its
transactions.

    clock = await VirtualClock.install(database, at)
    engine = Engine(database, clock)
    ...
    await clock.advance(timedelta(hours=1))     # an hour has passed, and nobody waited for it

Two things can happen to a clock, and they are not the same. Time *passes* (`set`, `advance`): the wall clock and the
monotonic one go on together, and never back. Or the wall clock *steps*, when somebody corrects it or a failover leads to
a machine with another one: then it may go back, and the monotonic one does not notice. An outage is time that passes
while nobody calls a verb.

The kit is for a database of a test's own: once it is installed, that database has no other clock.
"""
