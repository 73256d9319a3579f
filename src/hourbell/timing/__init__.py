"""When something is due: cron rules, intervals and zones, as pure functions of their arguments.

The rest of Hourbell always asks the same question: *what is the first instant after
this one?* No table of runs is ever computed, and nothing is stored between two answers, so it does
not matter which process asks, how late, or after how many crashes.

    errors.py      InvalidRule and UnknownZone: the field and how to fix it
    zones.py       zones from the tzdata package, never from the system
    fields.py      the grammar of one field of a cron rule
    days.py        the days of a month that the two day fields match
    cron.py        a whole rule: H, its canonical text, the next wall time that matches
    intervals.py   every N seconds
    rules.py       a rule in a zone: the next instant, across clock changes
    foreign.py     rules of other schedulers: rejected, with the equivalent here
    words.py       a cron rule in plain English
    changes.py     the clock changes of a zone
    forecast.py    the next runs, with notes on clock changes, for people; the load of many rules
    delays.py      how late runs start where limits hold

The path of a rule: a user writes `H 2 * * MON-FRI`. At creation `cron.resolve_hash` replaces H with
the job's own minute, and `cron.canonical` returns the text that identifies a timetable, say
`17 2 * * 1-5`. Planners call `rules.compile_rule`, which caches the parsed rule, and then `next`.

No clock is read here, and the only files read are those of the tzdata package, each once. How a job
handles missed runs is a matter of policy, not of time, and is decided elsewhere. `docs/time.md`
explains the rules to users; the tests run its examples.
"""
