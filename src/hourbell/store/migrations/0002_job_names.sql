-- Recurring jobs by the beginning of their names, whatever their number. By bytes: an index in the collation of the
-- database does not serve prefixes. One-time jobs have their names in their documents, and are searched newest first.
create index jobs_by_name on hourbell.jobs (name collate "C", id);
