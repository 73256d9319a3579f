"""The life of an execution, one file per verb.

    create        a package; `references`: what a job names must exist
    join, plan    the executions of recurring jobs; `broken`: timetables that cannot be computed here
    admit         the gate
    settle        outcomes; `settlement`: a pure function decides what follows from an outcome;
                  `failures`: the log lines of those that failed
    reap          executions whose worker died, or whose deadline has passed
    retain        partitions, and the end of what has expired

Claim has no file of its own: it is `hourbell.dispatch`.
"""
