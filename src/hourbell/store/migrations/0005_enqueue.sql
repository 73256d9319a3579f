-- What jobs of a task have if the caller of hourbell.enqueue says nothing: a term of hourbell.try_enqueue, as JSON.
-- Declared by the workers that serve the task; null: by none.
alter table hourbell.tasks add defaults text;

-- Whether the functions with fixed names (hourbell.enqueue and others) call this set, so that it is not dropped.
alter table hourbell.function_sets add is_public boolean not null default false;
