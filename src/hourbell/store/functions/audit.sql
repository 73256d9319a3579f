-- What the audit trail shows.

-- The document of a job after the change that audit row p_row recorded. For a newly created one-time job it is the job
-- itself while the job is unchanged; after that, the first later change says what the document was before. Null: there
-- is none, or the job is no longer kept.
create or replace function hourbell.document_after(p_operation text, p_after json, p_job bigint, p_row bigint)
returns text
language sql stable
return case when p_after is not null or p_operation <> 'create' then p_after::text else coalesce(
  (select before::text from hourbell.audit
   where (job, id) > (p_job, p_row) and job <= p_job and before is not null order by job, id limit 1),
  (select spec from (select spec, job from hourbell.executions where id = p_job offset 0) as e
    where e.job is null)) end;
