-- Whether the value of a secret can sign webhooks; null: it was set by a version that did not check.
alter table hourbell.secrets add column signs boolean;
