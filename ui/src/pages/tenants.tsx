// Tenants: the share of the work that each gets, and is entitled to.
import { useState, type ReactNode } from "react";
import { Link } from "wouter";

import { useApi, useCan } from "../api/hooks";
import type { Job, Page, Tenant } from "../api/types";
import { group } from "../lib/time";
import { useParams } from "../lib/url";
import { counted, plural } from "../lib/words";
import { BacklogPanel } from "../parts/backlog";
import { Button, ButtonLink, Can, Empty, Lead, Muted, PageHead, Panel, Reading, styles as parts } from "../parts/basics";
import { Segments } from "../parts/fields";
import { Menu } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { Table, TableFooter, type Column } from "../parts/table";
import { PauseMany } from "./job-acts";
import { EditLimits, limitWords, TENANT_SETTINGS, type LimitsLike } from "./limits";
import s from "./pages.module.css";

const LIMITS = ["max_concurrency", "per_second", "max_jobs"];

function percent(share: number): string {
  return `${share >= 0.1 ? Math.round(share * 100) : (share * 100).toFixed(1)}%`;
}

/** The share of starts as a bar, with a tick at the fair share. */
export function Share({ share, fair }: { share: number | null | undefined; fair: number | null | undefined }) {
  if (typeof share !== "number") return <Muted>–</Muted>;
  const words = `${percent(share)} of the starts${typeof fair === "number" ? `, fair share ${percent(fair)}` : ""}`;
  return (
    <div className={parts.share} role="img" aria-label={words} title={words}>
      <i style={{ width: `${Math.min(100, share * 100)}%` }} />
      {typeof fair === "number" && <b style={{ left: `calc(${Math.min(100, fair * 100)}% - 1px)` }} />}
    </div>
  );
}

const waitingOf = (tenant: string) => `/executions?tenant_id=${encodeURIComponent(tenant)}&status=QUEUED`;
const runningOf = (tenant: string) => `/executions?tenant_id=${encodeURIComponent(tenant)}&status=RUNNING`;

/** A count of a tenant; a lower bound is marked as such. */
function Count({ of: tenant, name }: { of: Tenant; name: Exclude<keyof NonNullable<Tenant["counts"]>, "at_least"> }) {
  const number = tenant.counts?.[name];
  return (
    <>
      {tenant.counts?.at_least.includes(name) && <Muted>at least </Muted>}
      {counted(number)}
    </>
  );
}

/** A note beside a name that may be a typing mistake. */
export function OnUse() {
  return (
    <Muted>
      {" "}
      created on use
    </Muted>
  );
}

/** A count that leads to what it counts. */
function CountLink({ of: tenant, name, href }: { of: Tenant; name: "jobs" | "waiting" | "running"; href: string }) {
  const count = <Count of={tenant} name={name} />;
  return tenant.counts?.[name] ? <Link href={href}>{count}</Link> : <Muted>{count}</Muted>;
}

export function Tenants() {
  const [params] = useParams();
  const byName = params.get("order") === "name";
  const can = useCan();
  const [pausing, setPausing] = useState<string | null>(null);
  const [editing, setEditing] = useState<Tenant | null>(null);
  const read = useApi<Page<Tenant>>("/api/v1/tenants", byName ? { page_size: 100, counts: true, page_token: params.get("after") } : { order: "share", counts: true }, { keep: true, hold: pausing !== null || editing !== null });
  // Tenants that started nothing have no share and follow by name.
  const others = useApi<Page<Tenant>>("/api/v1/tenants", { page_size: 100, counts: true }, { enabled: !byName, hold: pausing !== null || editing !== null });
  const rowsOf = (page: Page<Tenant>) => (byName ? page.items : [...page.items, ...(others.data?.items ?? []).filter((other) => page.items.every((each) => each.tenant_id !== other.tenant_id))]);
  const columns: Column<Tenant>[] = [
    {
      id: "tenant",
      title: "Tenant",
      first: true,
      cell: (tenant) => (
        <>
          <Link className={parts.name} href={`/tenants/${encodeURIComponent(tenant.tenant_id)}`}>
            {tenant.tenant_id}
          </Link>
          {tenant.created_on_use && <OnUse />}
        </>
      ),
    },
    { id: "weight", title: "Weight", kind: "number", cell: (tenant) => tenant.weight },
    { id: "bar", title: "Of all starts", cell: (tenant) => <Share share={tenant.share} fair={tenant.fair_share} /> },
    { id: "share", title: "Share", kind: "number", cell: (tenant) => (typeof tenant.share === "number" ? percent(tenant.share) : "–") },
    { id: "fair", title: "Fair share", kind: "number", cell: (tenant) => (typeof tenant.fair_share === "number" ? percent(tenant.fair_share) : "–") },
    { id: "jobs", title: "Jobs", kind: "number", cell: (tenant) => <CountLink of={tenant} name="jobs" href={`/jobs?tenant_id=${encodeURIComponent(tenant.tenant_id)}`} /> },
    { id: "waiting", title: "Waiting", kind: "number", cell: (tenant) => <CountLink of={tenant} name="waiting" href={waitingOf(tenant.tenant_id)} /> },
    { id: "parked", title: "Parked", kind: "number", cell: (tenant) => <Count of={tenant} name="parked" /> },
    { id: "running", title: "Running", kind: "number", cell: (tenant) => <CountLink of={tenant} name="running" href={runningOf(tenant.tenant_id)} /> },
    { id: "limits", title: "Limits", cell: (tenant) => limitWords(tenant as LimitsLike) },
    {
      id: "menu",
      title: "Actions",
      kind: "menu",
      cell: (tenant) => (
        <Menu
          label={`Actions for ${tenant.tenant_id}`}
          items={[
            { label: "Jobs", href: `/jobs?tenant_id=${encodeURIComponent(tenant.tenant_id)}` },
            { label: "Forecast", href: `/forecast?tenant_id=${encodeURIComponent(tenant.tenant_id)}` },
            { label: "Weight and limits…", act: () => setEditing(tenant), hidden: !can("set_tenant") },
            { label: "Pause everything…", act: () => setPausing(tenant.tenant_id), red: true, hidden: !can("create_operation") },
          ]}
        />
      ),
    },
  ];
  return (
    <>
      <PageHead title="Tenants" actions={<Segments label="Order" current={byName ? "name" : "share"} items={[{ id: "share", text: "By share", href: "/tenants" }, { id: "name", text: "By name", href: "/tenants?order=name" }]} />} />
      {!byName && <Lead>The bar is a tenant’s share of all starts in the last hour; the tick is its fair share, by weight, among tenants that had work. More than the fair share is fine: the tenant uses what others leave.</Lead>}
      <Lead>Waiting counts executions that are due but have not started, for whatever reason; parked counts those among them that wait for the tenant’s own limits.</Lead>
      <Panel flush label="Tenants">
        <Reading of={read} what="list of tenants" rows={8}>
          {(page) =>
            rowsOf(page).length === 0 ? (
              <Empty>There are no tenants yet. A job that names a tenant creates it.</Empty>
            ) : (
              <>
                <Table label="Tenants" columns={byName ? columns.filter((column) => !["bar", "share", "fair"].includes(column.id)) : columns} rows={rowsOf(page)} keyOf={(tenant) => tenant.tenant_id} />
                {byName ? <Pager page={page} size={100} noun="tenant" /> : <TableFooter>{plural(rowsOf(page).length, "tenant")}{others.data?.next_page_token ? "; to see more, sort by name" : ""}.</TableFooter>}
              </>
            )
          }
        </Reading>
      </Panel>
      {pausing && <PauseMany act="pause" filter={{ tenant_id: pausing }} close={() => setPausing(null)} />}
      {editing && <Edit tenant={editing} close={() => setEditing(null)} />}
    </>
  );
}

function Edit({ tenant, close }: { tenant: Tenant; close: () => void }) {
  return <EditLimits title={`Weight and limits of ${tenant.tenant_id}`} name={tenant.tenant_id} path={`/api/v1/tenants/${encodeURIComponent(tenant.tenant_id)}`} settings={TENANT_SETTINGS} current={tenant as unknown as LimitsLike & { version: number } & Record<string, unknown>} close={close} />;
}

export function TenantPage({ name }: { name: string }) {
  const read = useApi<Tenant>(`/api/v1/tenants/${encodeURIComponent(name)}`);
  const paused = useApi<Page<Job>>("/api/v1/jobs", { tenant_id: name, status: "PAUSED", page_size: 1 });
  const [act, setAct] = useState<"pause" | "resume" | "edit" | null>(null);
  return (
    <>
      <PageHead
        title={name}
        beside={<Muted>tenant</Muted>}
        actions={
          <>
            <ButtonLink href={`/forecast?tenant_id=${encodeURIComponent(name)}`}>Forecast</ButtonLink>
            <Can op="set_tenant">
              <Button onClick={() => setAct("edit")}>Weight and limits…</Button>
            </Can>
            <Can op="create_operation">
              {(paused.data?.items.length ?? 0) > 0 && <Button onClick={() => setAct("resume")}>Resume everything…</Button>}
              <Button onClick={() => setAct("pause")}>Pause everything…</Button>
            </Can>
          </>
        }
      />
      {(paused.data?.items.length ?? 0) > 0 && (
        <p className={parts.note}>
          Some of its jobs are paused{paused.data?.items[0]?.paused?.reason ? `: “${paused.data.items[0].paused.reason}”` : ""}. <Link href={`/jobs?tenant_id=${encodeURIComponent(name)}&status=PAUSED`}>Show them</Link>
        </p>
      )}
      <Reading of={read} what="tenant" rows={6}>
        {(tenant) => (
          <div className={s.stack}>
            <Counts
              items={[
                ["Jobs", <Count of={tenant} name="jobs" />, `/jobs?tenant_id=${encodeURIComponent(name)}`],
                ["Running", <Count of={tenant} name="running" />, runningOf(name)],
                ["Waiting", <Count of={tenant} name="waiting" />, waitingOf(name)],
                ["Parked by its limits", <Count of={tenant} name="parked" />, null],
                ["Not planned", <Count of={tenant} name="not_planned" />, null],
              ]}
            />
            <BacklogPanel waiting={tenant.waiting_for} />
            <Panel title="Settings">
              <dl className={parts.facts}>
                {TENANT_SETTINGS.map((setting) => {
                  const flat: Record<string, unknown> = { ...tenant, per_second: tenant.rate_limit?.per_second, burst: tenant.rate_limit?.burst };
                  const value = flat[setting.name];
                  return (
                    <div key={setting.name} style={{ display: "contents" }}>
                      <dt>{setting.label}</dt>
                      <dd>{value === null || value === undefined ? <Muted>{LIMITS.includes(setting.name) ? "no limit" : "default"}</Muted> : typeof value === "number" ? group(value) : String(value)}</dd>
                    </div>
                  );
                })}
              </dl>
            </Panel>
            {act === "edit" && <Edit tenant={tenant} close={() => setAct(null)} />}
          </div>
        )}
      </Reading>
      {(act === "pause" || act === "resume") && <PauseMany act={act} filter={{ tenant_id: name }} close={() => setAct(null)} />}
    </>
  );
}

export function Counts({ items }: { items: [string, ReactNode, string | null][] }) {
  return (
    <div className={s.figures}>
      {items.map(([label, value, href]) =>
        href ? (
          <Link key={label} className={s.figure} href={href}>
            <span>{label}</span>
            <b>{value}</b>
          </Link>
        ) : (
          <div key={label} className={s.figure}>
            <span>{label}</span>
            <b>{value}</b>
          </div>
        ),
      )}
    </div>
  );
}
