-- Names that a job has created by naming them, and that no PUT has declared since. Null: declared, or older than this.
alter table hourbell.tenants add created_on_use boolean;
alter table hourbell.queues add created_on_use boolean;
