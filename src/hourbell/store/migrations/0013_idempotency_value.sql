-- Idempotency compares the JSON value of a request. `fingerprint`, of its bytes, is what nodes of the version before compare;
-- rows that they wrote have no value_fingerprint.
alter table hourbell.idempotency add column value_fingerprint bytea;
