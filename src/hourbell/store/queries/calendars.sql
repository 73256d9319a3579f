-- Calendars: named lists of dates that schedules skip.

-- name: calendar
-- The calendar $2 of the tenant $1 (a name), with its dates in order.
select c.name, c.created_at, c.updated_at,
  array(select day from hourbell.calendar_dates as d where (d.tenant, d.calendar) = (c.tenant, c.name) order by day)
    as dates
from hourbell.calendars as c where c.tenant = (select id from hourbell.tenants where name = $1) and c.name = $2

-- name: list_calendars
-- The calendars of the tenant $1, by name, after $2.
select c.name, c.created_at, c.updated_at,
  array(select day from hourbell.calendar_dates as d where (d.tenant, d.calendar) = (c.tenant, c.name) order by day)
    as dates
from hourbell.calendars as c
where c.tenant = (select id from hourbell.tenants where name = $1) and c.name > $2 order by c.name limit $3

-- name: count_calendars
-- How many other calendars a tenant has.
select count(*) from hourbell.calendars where tenant = $1 and name <> $2

-- name: put_calendar
insert into hourbell.calendars (tenant, name, created_at, updated_at) values ($1, $2, $3, $3)
on conflict (tenant, name) do update set updated_at = excluded.updated_at returning created_at

-- name: clear_dates
delete from hourbell.calendar_dates where tenant = $1 and calendar = $2 and day <> all ($3)

-- name: add_dates
insert into hourbell.calendar_dates (tenant, calendar, day) select $1, $2, day from unnest($3::date[]) as day
on conflict do nothing

-- name: delete_calendar
delete from hourbell.calendars where tenant = $1 and name = $2 returning name

-- name: existing_calendars
-- Which of the calendars $2[k] of tenants $1[k] exist.
select asked.tenant, c.name
from unnest($1::text[], $2::text[]) as asked(tenant, name)
join hourbell.tenants as t on t.name = asked.tenant
join hourbell.calendars as c on c.tenant = t.id and c.name = asked.name

-- name: excluded_dates
-- The dates of the calendars $2 of the tenant $1, from $3 on.
select day, min(calendar) as calendar from hourbell.calendar_dates
where tenant = (select id from hourbell.tenants where name = $1) and calendar = any ($2) and day >= $3 group by day

-- name: dates_of_calendars
-- The dates from $3 on of the calendars $2[k] of tenants $1[k].
select asked.tenant, asked.name, array_agg(d.day) as dates
from unnest($1::text[], $2::text[]) as asked(tenant, name)
join hourbell.tenants as t on t.name = asked.tenant
join hourbell.calendar_dates as d on d.tenant = t.id and d.calendar = asked.name and d.day >= $3
group by asked.tenant, asked.name
