"""When something is due: cron rules, intervals and zones, as pure functions of their arguments.

The question that the rest of Hourbell asks is always the same: *which is the first instant after
this one?* Nobody asks for a table of runs, and nothing is remembered between two answers, so it
does not matter which process asks, how late, or after how many crashes.

    errors.py      InvalidRule and UnknownZone: a field and what to do about it
    zones.py       zones from the tzdata package, never from the system
    fields.py      the grammar of one field of a cron rule
    days.py        which days of a month the two day fields mean
    cron.py        a whole rule: H, its canonical text, the next wall time that matches
    intervals.py   every N seconds
    rules.py       a rule in a zone: the next instant, whatever the clocks do
    forecast.py    the next runs with a word on clock changes, for people

The way of a rule: a user writes `H 2 * * MON-FRI`; at creation `cron.resolve_hash` puts the job's
own minute in the place of H and `cron.canonical` gives the text that a timetable is found by, say
`17 2 * * 1-5`; planners call `rules.compile_rule`, which keeps what it has read, and then `next`.

No clock is read here and the only files are those of the tzdata package, each once. What a job
does about runs that were missed is not a question of time but of policy, and is decided elsewhere.
The rule as users read it is `docs/time.md`; its examples are run by the tests.
"""
