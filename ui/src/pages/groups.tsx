// Groups of executions with one callback, and calendars of dates that schedules skip.
import { Link } from "wouter";

import { useApi } from "../api/hooks";
import type { Calendar, Group, Page } from "../api/types";
import { changed, useParams } from "../lib/url";
import { group as grouped } from "../lib/time";
import { plural, statusWord } from "../lib/words";
import { Empty, Lead, Muted, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Segments } from "../parts/fields";
import { Pager } from "../parts/pager";
import { Badge } from "../parts/status";
import { Table, type Column } from "../parts/table";

const STATES = [
  { id: "", text: "All" },
  { id: "OPEN", text: "Open" },
  { id: "CLOSED", text: "Closed" },
  { id: "ENDED", text: "Ended" },
];

function endedOf(group: Group): number {
  return Object.values(group.ended).reduce((sum, count) => sum + count, 0);
}

function State({ group }: { group: Group }) {
  const [text, colour] = group.ended_at ? ["Ended", "cancelled"] : group.closed_at ? ["Closed", "running"] : ["Open", "scheduled"];
  return <Badge text={text as string} colour={colour as string} />;
}

export function Groups() {
  const [params] = useParams();
  const state = params.get("state") ?? "";
  const read = useApi<Page<Group>>("/api/v1/groups", { state, page_size: 50, page_token: params.get("after") }, { keep: true });
  const columns: Column<Group>[] = [
    { id: "name", title: "Name", first: true, cell: (group) => <Link className={parts.name} href={`/groups/${group.group_id}`}>{group.name}</Link> },
    { id: "state", title: "State", kind: "nowrap", cell: (group) => <State group={group} /> },
    { id: "tenant", title: "Tenant", cell: (group) => group.tenant_id },
    { id: "members", title: "Members", kind: "number", cell: (group) => grouped(group.members) },
    { id: "ended", title: "Ended", kind: "number", cell: (group) => grouped(endedOf(group)) },
    { id: "dead", title: "Dead", kind: "number", cell: (group) => grouped(group.ended.DEAD ?? 0) },
    { id: "created", title: "Created", kind: "nowrap", cell: (group) => <Time at={group.created_at} />, newestFirst: true },
    { id: "problem", title: "Problem", kind: "cut", cell: (group) => <span title={group.problem ?? undefined}>{group.problem ?? ""}</span> },
  ];
  return (
    <>
      <PageHead title="Groups" />
      <Lead>A group has one callback, which runs when the group is closed and all its members have ended.</Lead>
      <div className={parts.filters}>
        <Segments label="State" current={state} items={STATES.map((each) => ({ ...each, href: changed("/groups", new URLSearchParams(params), { state: each.id || null, after: null }) }))} />
      </div>
      <Panel flush label="Groups">
        <Reading of={read} what="list of groups" rows={6}>
          {(page) =>
            page.items.length || page.next_page_token ? (
              <>
                <Table label="Groups" columns={columns} rows={page.items} keyOf={(group) => group.group_id} open={(group) => `/groups/${group.group_id}`} />
                <Pager page={page} size={50} noun="group" back={page.items.at(-1)?.created_at} />
              </>
            ) : (
              <Empty>There are no groups{state ? " in this state" : " yet"}.</Empty>
            )
          }
        </Reading>
      </Panel>
    </>
  );
}

export function GroupPage({ id }: { id: string }) {
  const read = useApi<Group>(`/api/v1/groups/${id}`, undefined, { everySeconds: 5 });
  return (
    <Reading of={read} what="group" page="Group" rows={6}>
      {(group) => (
        <>
          <PageHead title={group.name} beside={<State group={group} />} />
          <Panel title="Group">
            <dl className={parts.facts}>
              <dt>Id</dt>
              <dd>
                <code>{group.group_id}</code>
              </dd>
              <dt>Tenant</dt>
              <dd>{group.tenant_id}</dd>
              <dt>Members</dt>
              <dd>
                {plural(group.members, "execution")}, {grouped(endedOf(group))} ended
                {Object.entries(group.ended)
                  .filter(([, count]) => count > 0)
                  .map(([fate, count]) => ` · ${grouped(count)} ${statusWord(fate).toLowerCase()}`)
                  .join("")}
              </dd>
              <dt>Created</dt>
              <dd>
                <Time at={group.created_at} mode="absolute" />
              </dd>
              <dt>Closed</dt>
              <dd>{group.closed_at ? <Time at={group.closed_at} mode="absolute" /> : <Muted>no, members can still be added</Muted>}</dd>
              <dt>Ended</dt>
              <dd>{group.ended_at ? <Time at={group.ended_at} mode="absolute" /> : <Muted>not yet</Muted>}</dd>
              <dt>Callback</dt>
              <dd>
                {group.url ?? `task ${group.task}`} {group.execution_id && <Link href={`/executions/${group.execution_id}`}>Open its execution</Link>}
              </dd>
              {group.problem && (
                <>
                  <dt>Problem</dt>
                  <dd>{group.problem}</dd>
                </>
              )}
            </dl>
          </Panel>
        </>
      )}
    </Reading>
  );
}

export function Calendars() {
  const [params] = useParams();
  const read = useApi<Page<Calendar>>("/api/v1/calendars", { page_size: 50, page_token: params.get("after") }, { keep: true });
  const today = new Date().toISOString().slice(0, 10);
  const columns: Column<Calendar>[] = [
    { id: "name", title: "Name", first: true, cell: (calendar) => <b>{calendar.name}</b> },
    { id: "tenant", title: "Tenant", cell: (calendar) => calendar.tenant_id },
    { id: "dates", title: "Dates", kind: "number", cell: (calendar) => grouped(calendar.dates.length) },
    { id: "next", title: "Next dates", cell: (calendar) => calendar.dates.filter((day) => day >= today).slice(0, 4).join(", ") || <Muted>none ahead</Muted> },
    { id: "updated", title: "Updated", kind: "nowrap", cell: (calendar) => <Time at={calendar.updated_at} /> },
  ];
  return (
    <>
      <PageHead title="Calendars" />
      <Lead>A calendar has dates on which the schedules that exclude it do not run. Set one with hourbell calendars set.</Lead>
      <Panel flush label="Calendars">
        <Reading of={read} what="list of calendars" rows={4}>
          {(page) =>
            page.items.length ? (
              <>
                <Table label="Calendars" columns={columns} rows={page.items} keyOf={(calendar) => `${calendar.tenant_id} ${calendar.name}`} />
                <Pager page={page} size={50} noun="calendar" />
              </>
            ) : (
              <Empty>There are no calendars.</Empty>
            )
          }
        </Reading>
      </Panel>
    </>
  );
}
