-- Function sets: each build of the program loads and calls its own copies of the SQL functions.

create table hourbell.function_sets (
  digest    text primary key,      -- the suffix of its functions' names
  version   text not null,         -- of the program that loaded it
  loaded_at timestamptz not null,
  used_at   timestamptz not null   -- running processes renew it; a set that nothing has used for days is dropped
);

-- The newest migration that a program must know to work with the tables as this one leaves them; null: none in particular.
alter table hourbell.migrations add requires text;

-- Kept the digest of the one set that all builds shared.
delete from hourbell.migrations where name = 'functions';
