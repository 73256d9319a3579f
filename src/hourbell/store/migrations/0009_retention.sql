-- How long a tenant's history is kept, in days; null: as long as the cell says. The ledger's days are dropped whole by the cell's
-- setting, so a tenant can have less of the ledger than the cell, not more.
alter table hourbell.tenants
  add column ledger_days int check (ledger_days >= 1),
  add column dead_letter_days int check (dead_letter_days >= 1),
  add column audit_days int check (audit_days >= 1);

-- The tenant after which the next round of `hourbell.retain` begins.
create sequence hourbell.retention_cursor minvalue 0 start 0;
