-- Shared by all lists.

-- name: pin_plans
-- First in the transaction of a list: makes it walk an index and stop early,
-- whatever the statistics.
select set_config(name, 'off', true) from unnest(array[
  'jit', 'enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_incremental_sort', 'enable_hashjoin',
  'enable_mergejoin', 'enable_material', 'enable_memoize']) as name
