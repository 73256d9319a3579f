// Dead letters: grouped by error, replayed with progress.
import { useState } from "react";
import { Link, useLocation } from "wouter";

import { now } from "../api/client";
import { useAct, useApi, useCan, useMe } from "../api/hooks";
import type { DeadLetter, LetterGroup, LetterGroups, Operation, Page, Tenant } from "../api/types";
import { useSettings } from "../lib/settings";
import { group, rough, zoneFor, zoneName } from "../lib/time";
import { changed, useParams } from "../lib/url";
import { counted, plural } from "../lib/words";
import { Button, Can, Empty, Muted, Note, PageHead, Panel, Reading, Short, styles as parts, Time } from "../parts/basics";
import { Chips, Field, Segments, Select } from "../parts/fields";
import { Confirm, Menu } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { Status } from "../parts/status";
import { Table, TableFooter, type Column } from "../parts/table";
import { Views } from "../parts/views";
import { boundsOf, useMinute } from "./executions";
import { firstLine } from "./job";
import { usePreview } from "./job-acts";
import { Progress, useOperation } from "./operations";

const TIMES = [
  { id: "today", text: "Today" },
  { id: "yesterday", text: "Yesterday" },
  { id: "7d", text: "7 d" },
  { id: "all", text: "All" },
];
const REASONS = ["retries_exhausted", "non_retryable", "deadline", "lost", "crashed", "snoozed"];

interface Asked {
  act: "replay" | "purge";
  filter: Record<string, string>;
  count: number | null;
  words: string;
}

export function DeadLetters() {
  const [params, setParams] = useParams();
  const [path, navigate] = useLocation();
  const { clock } = useSettings();
  const me = useMe();
  const zone = clock === "job" ? "UTC" : zoneFor(clock);
  const at = useMinute();
  const [asked, setAsked] = useState<Asked | null>(null);
  const time = params.get("time") ?? "today";
  const view = params.get("view") === "list" ? "list" : "groups";
  const bounds = boundsOf(time, at, zone);
  const filter = { tenant_id: params.get("tenant_id"), reason: params.get("reason"), job_id: params.get("job_id"), ...bounds };
  const tenants = useApi<Page<Tenant>>("/api/v1/tenants", { page_size: 200 }, { enabled: !me?.tenant_id });
  const set = (change: Record<string, string | null>) => setParams({ ...change, after: null });
  const to = (change: Record<string, string | null>) => changed(path, new URLSearchParams(params), { after: null, ...change });
  const chips = (["tenant_id", "reason", "job_id", "fingerprint"] as const).flatMap((name) => (params.get(name) ? [{ name: { tenant_id: "tenant", reason: "reason", job_id: "job", fingerprint: "error" }[name], value: params.get(name) as string, remove: () => set({ [name]: null }) }] : []));
  const timeWords = { today: "died today", yesterday: "died yesterday", "7d": "died in the last 7 days", all: "of any time" }[time] ?? "";
  const given = Object.fromEntries(Object.entries({ ...filter, fingerprint: params.get("fingerprint") }).filter(([, value]) => value)) as Record<string, string>;
  return (
    <>
      <PageHead title="Dead letters" beside={<Muted>days in {zone === "UTC" ? "UTC" : zoneName(now(), zone)}</Muted>} actions={<Views list="dead-letters" path="/api/v1/dead-letters" query={given} />} />
      <Current id={params.get("operation")} close={() => setParams({ operation: null })} />
      <div className={parts.filters}>
        <Segments label="Died" current={time} items={TIMES.map((each) => ({ ...each, href: to({ time: each.id === "today" ? null : each.id }) }))} />
        <Segments label="View" current={view} items={[{ id: "groups", text: "By error", href: to({ view: null, fingerprint: null }) }, { id: "list", text: "List", href: to({ view: "list" }) }]} />
        {!me?.tenant_id && <Select label="Tenant" value={params.get("tenant_id") ?? ""} onChange={(tenant_id) => set({ tenant_id })} options={[["", "All tenants"], ...(tenants.data?.items ?? []).map((each): [string, string] => [each.tenant_id, each.tenant_id])]} />}
        <Select label="Reason" value={params.get("reason") ?? ""} onChange={(reason) => set({ reason })} options={[["", "Any reason"], ...REASONS.map((each): [string, string] => [each, each.replaceAll("_", " ")])]} />
        <Can op="create_operation">
          <Menu
            label="Actions for all matching"
            items={[
              { label: "Replay all matching…", act: () => setAsked({ act: "replay", filter: given, count: null, words: timeWords }) },
              { label: "Purge all matching…", red: true, act: () => setAsked({ act: "purge", filter: given, count: null, words: timeWords }) },
            ]}
          />
        </Can>
      </div>
      <Chips chips={chips} clear={() => navigate("/dead-letters")} />
      {view === "groups" ? <Groups filter={filter} time={time} to={to} timeWords={timeWords} ask={setAsked} /> : <List filter={filter} time={time} />}
      {asked && <Ask asked={asked} close={() => setAsked(null)} begun={(id) => { setAsked(null); setParams({ operation: id }); }} />}
    </>
  );
}

function Current({ id, close }: { id: string | null; close: () => void }) {
  const read = useOperation(id);
  if (!id || !read.data) return null;
  return (
    <div style={{ marginBottom: 16 }}>
      <Panel flush label="Operation">
        <Progress operation={read.data} />
        {read.data.state !== "RUNNING" && (
          <TableFooter>
            <span>Replayed runs that die again become dead letters again.</span>
            <Button small kind="quiet" onClick={close}>
              Dismiss
            </Button>
          </TableFooter>
        )}
      </Panel>
    </div>
  );
}

function Groups({ filter, time, to, timeWords, ask }: { filter: Record<string, string | null | undefined>; time: string; to: (change: Record<string, string | null>) => string; timeWords: string; ask: (asked: Asked) => void }) {
  const read = useApi<LetterGroups>("/api/v1/dead-letters/groups", filter, { keep: true });
  const can = useCan();
  const me = useMe();
  const columns: Column<LetterGroup>[] = [
    { id: "count", title: "Count", kind: "number", cell: (each) => <b>{group(each.count)}</b> },
    {
      id: "error",
      title: "Error",
      first: true,
      cell: (each) => (
        <Link className={parts.name} href={to({ view: "list", fingerprint: each.fingerprint })}>
          {[each.kind, each.action].filter(Boolean).join(" · ") || each.reason.replaceAll("_", " ")}
          <span className={parts.sub} title={each.error ?? undefined}>
            {firstLine(each.error) || "no message"}
          </span>
        </Link>
      ),
    },
    { id: "reason", title: "Reason", kind: "nowrap", cell: (each) => each.reason.replaceAll("_", " ") },
    { id: "jobs", title: "Jobs", kind: "number", cell: (each) => group(each.jobs) },
    ...(me?.tenant_id ? [] : [{ id: "tenants", title: "Tenants", cell: (each: LetterGroup) => (each.tenants.length === 1 ? <Short text={each.tenants[0] as string} /> : <span title={each.tenants.join(", ")}>{plural(each.tenants.length, "tenant")}</span>) }]),
    {
      id: "times",
      title: "First – last",
      kind: "nowrap",
      cell: (each) => (
        <span>
          <Time at={each.first_died_at} mode="short" seconds={false} /> – <Time at={each.last_died_at} mode="short" seconds={false} />
        </span>
      ),
    },
    { id: "sample", title: "Newest", kind: "nowrap", cell: (each) => <Link href={`/executions/${each.execution_id}`}>Open the newest</Link>, unlabelled: true },
    {
      id: "act",
      title: "Action",
      kind: "number",
      cell: (each) => {
        const words = `${each.kind ?? each.reason.replaceAll("_", " ")}${each.action ? ` at ${each.action}` : ""}, ${timeWords}`;
        const wanted = Object.fromEntries(Object.entries({ ...filter, fingerprint: each.fingerprint }).filter(([, value]) => value)) as Record<string, string>;
        return can("create_operation") ? (
          <span style={{ display: "inline-flex", gap: 4 }}>
            <Button small onClick={() => ask({ act: "replay", filter: wanted, count: each.count, words })}>
              Replay {group(each.count)}…
            </Button>
            <Menu label="More actions" items={[{ label: `Purge ${group(each.count)}…`, red: true, act: () => ask({ act: "purge", filter: wanted, count: each.count, words }) }]} />
          </span>
        ) : null;
      },
      unlabelled: true,
    },
  ];
  return (
    <Panel flush label="Dead letters by error">
      <Reading of={read} what="grouping of dead letters" rows={6}>
        {(groups) =>
          groups.items.length === 0 ? (
            <Empty>{time === "all" ? "Nothing has died." : "Nothing died in this period."}</Empty>
          ) : (
            <>
              <Table label="Dead letters by error" columns={columns} rows={groups.items} keyOf={(each) => each.fingerprint + each.reason} />
              <TableFooter>
                <span>
                  {plural(groups.items.length, "error")}, {plural(groups.items.reduce((sum, each) => sum + each.count, 0), "dead letter")}.
                  {!groups.complete && groups.looked_back_to && (
                    <>
                      {" "}
                      Only the newest {group(groups.looked_at)} were examined, back to <Time at={groups.looked_back_to} mode="absolute" />.
                    </>
                  )}
                </span>
              </TableFooter>
            </>
          )
        }
      </Reading>
    </Panel>
  );
}

function List({ filter, time }: { filter: Record<string, string | null | undefined>; time: string }) {
  const [params] = useParams();
  const me = useMe();
  const read = useApi<Page<DeadLetter>>("/api/v1/dead-letters", { ...filter, fingerprint: params.get("fingerprint"), page_size: 50, page_token: params.get("after") }, { keep: true });
  const columns: Column<DeadLetter>[] = [
    {
      id: "died",
      title: "Died",
      first: true,
      kind: "nowrap",
      cell: (letter) => (
        <Link className={parts.name} href={`/executions/${letter.execution_id}`}>
          <Time at={letter.died_at} mode="short" />
        </Link>
      ),
    },
    { id: "reason", title: "Reason", kind: "nowrap", cell: (letter) => <Status status="DEAD" detail={letter.reason.replaceAll("_", " ")} /> },
    { id: "job", title: "Job", cell: (letter) => <Link className={parts.clip} title={letter.job_name ?? undefined} href={`/jobs/${letter.job_id}`}>{letter.job_name ?? letter.job_id}</Link> },
    ...(me?.tenant_id ? [] : [{ id: "tenant", title: "Tenant", cell: (letter: DeadLetter) => <Short text={letter.tenant_id} /> }]),
    { id: "scheduled", title: "Scheduled", kind: "nowrap", cell: (letter) => <Time at={letter.scheduled_for} mode="short" /> },
    { id: "attempts", title: "Attempts", kind: "number", cell: (letter) => letter.attempt },
    { id: "error", title: "Error", kind: "cut", cell: (letter) => <span title={letter.error ?? undefined}>{[letter.kind, firstLine(letter.error)].filter(Boolean).join(" · ")}</span> },
  ];
  return (
    <Panel flush label="Dead letters">
      <Reading of={read} what="list of dead letters" rows={10}>
        {(page) =>
          page.items.length === 0 && !page.next_page_token ? (
            <Empty>{time === "all" ? "Nothing has died." : "Nothing died in this period."}</Empty>
          ) : (
            <>
              <Table label="Dead letters" columns={columns} rows={page.items} keyOf={(letter) => letter.execution_id} open={(letter) => `/executions/${letter.execution_id}`} />
              <Pager page={page} size={50} noun="dead letter" back={page.items.at(-1)?.died_at} />
            </>
          )
        }
      </Reading>
    </Panel>
  );
}

function Ask({ asked, close, begun }: { asked: Asked; close: () => void; begun: (id: string) => void }) {
  const can = useCan();
  // Executions that die while the dialog is open are not included.
  const [filter] = useState(() => ({ ...asked.filter, to: asked.filter.to ?? new Date(now()).toISOString() }));
  const [rate, setRate] = useState("20");
  const { act, busy, problem } = useAct();
  const counting = usePreview(asked.act, filter, can("preview_operation"));
  const preview = counting.data;
  const total = preview?.total ?? asked.count ?? 0;
  const perSecond = Number(rate);
  const replay = asked.act === "replay";
  async function begin() {
    const body = { act: asked.act, filter, ...(replay && perSecond > 0 ? { rate_per_second: perSecond } : {}) };
    begun(((await act("POST", "/api/v1/operations", { body })) as Operation).operation_id);
  }
  const verb = replay ? "Replay" : "Purge";
  const count = counting.isLoading && asked.count === null ? "…" : counted(total, preview?.at_least);
  return (
    <Confirm title={`${verb} ${count} ${total === 1 ? "dead letter" : "dead letters"}: ${asked.words}`} verb={`${verb} ${count}`} danger={!replay} typed={replay ? undefined : String(total)} close={close} confirm={() => void begin().catch(() => undefined)} waiting={can("preview_operation") && !preview} busy={busy} problem={problem ?? counting.error}>
      {preview && asked.count !== null && preview.total !== asked.count && <Note>There are now {count}; when you opened the page there were {group(asked.count)}.</Note>}
      {replay ? (
        <>
          <p>They keep their ids and run with the current definition of their job. Those whose job was deleted are skipped.</p>
          <Field label="Rate per second" hint={perSecond > 0 ? `Done in about ${rough((total / perSecond) * 1000)}. Other work is not slowed down.` : "All become due at once."}>
            {(props) => <input {...props} className={parts.input} inputMode="numeric" value={rate} onChange={(event) => setRate(event.target.value)} />}
          </Field>
        </>
      ) : (
        <>
          <p>They can no longer be replayed. This cannot be undone. The execution history is kept.</p>
          <p>To keep a copy, cancel and export the list first.</p>
        </>
      )}
    </Confirm>
  );
}

