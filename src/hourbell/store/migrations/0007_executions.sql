-- What an execution says of itself beside its fate.

-- The name of the worker, as long as the ledger may name its session.
alter table hourbell.past_sessions add worker text;

-- The kind of failure of the last attempt; `reason` says why no other followed. Null if the attempt did not fail.
alter table hourbell.ledger add failure_kind text;
