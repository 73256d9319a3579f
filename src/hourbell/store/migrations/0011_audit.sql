-- The one-time jobs that a request created for a tenant, if there are several; `job` is the first of them. Their documents are
-- not copied: each job is the record of what was asked for.
alter table hourbell.audit add jobs bigint[];
