-- The attempt that has got the outcome of a wait, counted as in `executions.attempt`; null: none has. In a later
-- attempt, a wait that ended without success is open again.
alter table hourbell.waits add column seen_attempt int;
