"""Read-only operations.

jobs, job_keys, job_details        jobs
executions, missed                 executions
explain, waiting_for, backlog      why something waits or did not run
dead_letter_groups                 dead letters by error
preview, forecast                  a schedule, and the coming load
resources                          tenants, queues and targets
overview, activity, attention      the cell at a glance, by minute, and what needs attention
tasks                              tasks and hosts: runs, durations, what waits
fleet, health, diagnosis           processes and workers, readiness, `hourbell doctor`
failing                            rows on which a step fails
cell_metrics                       gauges of the whole cell
pages                              lists in parts, which they share
"""
