-- What all lists share.

-- name: pin_plans
-- First in the transaction of a list: it walks along an index and stops early, whatever statistics say of the tables.
select set_config(name, 'off', true) from unnest(array[
  'jit', 'enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_incremental_sort', 'enable_hashjoin', 'enable_mergejoin',
  'enable_material']) as name
