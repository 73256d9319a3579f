-- The one-time jobs that a request created for a tenant, if there are several; `job` is the first of them. Their documents are
-- not copied: each job is the record of what was asked for. Stored as they are: compressing them takes longer than writing them.
alter table hourbell.audit add jobs bigint[], alter jobs set storage external;
