// Monitors, the audit trail, secrets and keys.
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";

import { call, get } from "../api/client";
import { holdPage, useAct, useApi, useCan, useMe } from "../api/hooks";
import type { AuditEntry, Job, Key, MadeKey, Monitor, Page, Secret } from "../api/types";
import { useParams } from "../lib/url";
import { operationWords } from "../lib/words";
import { Button, Can, Code, Empty, Lead, Muted, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Field, Select } from "../parts/fields";
import { Confirm, Dialog, Menu, toast } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { Badge } from "../parts/status";
import { Table, type Column } from "../parts/table";
import { AuditEntries } from "./job";

export function Monitors() {
  const [params] = useParams();
  const can = useCan();
  const [deleting, setDeleting] = useState<Monitor | null>(null);
  const [creating, setCreating] = useState(false);
  const { act, busy, problem } = useAct();
  const read = useApi<Page<Monitor>>("/api/v1/monitors", { page_size: 50, page_token: params.get("after") }, { keep: true });
  const columns: Column<Monitor>[] = [
    { id: "job", title: "Job", first: true, cell: (monitor) => <Link className={parts.name} href={`/jobs/${monitor.job_id}`}>{monitor.job_name ?? monitor.job_id}</Link> },
    { id: "status", title: "Status", kind: "nowrap", cell: (monitor) => <Badge text={monitor.status === "UP" ? "Up" : "Down"} colour={monitor.status === "UP" ? "succeeded" : "failed"} /> },
    { id: "tenant", title: "Tenant", cell: (monitor) => monitor.tenant_id },
    { id: "expected", title: "Expected", kind: "nowrap", cell: (monitor) => <Time at={monitor.expected_at} /> },
    { id: "success", title: "Last success", kind: "nowrap", cell: (monitor) => <Time at={monitor.last_success_at} /> },
    { id: "grace", title: "Grace", kind: "number", cell: (monitor) => `${monitor.grace_seconds} s` },
    { id: "url", title: "Sends to", kind: "cut", cell: (monitor) => <span title={monitor.url}>{monitor.url}</span> },
    { id: "menu", title: "Actions", kind: "menu", cell: (monitor) => <Menu label="Actions for the monitor" items={[{ label: "Delete…", red: true, act: () => setDeleting(monitor), hidden: !can("delete_monitor") }]} /> },
  ];
  async function remove(monitor: Monitor) {
    await act("DELETE", `/api/v1/monitors/${monitor.monitor_id}`);
    toast("Monitor deleted.");
    setDeleting(null);
  }
  return (
    <>
      <PageHead
        title="Monitors"
        actions={
          <Can op="create_monitor">
            <Button kind="primary" onClick={() => setCreating(true)}>
              New monitor
            </Button>
          </Can>
        }
      />
      <Lead>A monitor calls a URL when a job does not succeed in time.</Lead>
      <Panel flush label="Monitors">
        <Reading of={read} what="list of monitors" rows={4}>
          {(page) =>
            page.items.length ? (
              <>
                <Table label="Monitors" columns={columns} rows={page.items} keyOf={(monitor) => monitor.monitor_id} />
                <Pager page={page} size={50} noun="monitor" />
              </>
            ) : (
              <Empty>There are no monitors.</Empty>
            )
          }
        </Reading>
      </Panel>
      {creating && <NewMonitor close={() => setCreating(false)} />}
      {deleting && (
        <Confirm title="Delete this monitor?" verb="Delete" danger close={() => setDeleting(null)} confirm={() => void remove(deleting).catch(() => undefined)} busy={busy} problem={problem}>
          <p>You will no longer be alerted if the job does not succeed in time.</p>
        </Confirm>
      )}
    </>
  );
}

function NewMonitor({ close }: { close: () => void }) {
  const [job, setJob] = useState("");
  const [grace, setGrace] = useState("300");
  const [url, setUrl] = useState("");
  const [unknown, setUnknown] = useState(false);
  const { act, busy, problem } = useAct();
  async function create() {
    const name = job.trim();
    const found = name.startsWith("job_") ? name : (await get<Page<Job>>("/api/v1/jobs", { type: "RECURRING", name_prefix: name, page_size: 50 })).items.find((each) => each.name === name)?.job_id;
    setUnknown(!found);
    if (!found) return;
    await act("POST", "/api/v1/monitors", { body: { job_id: found, grace_seconds: Number(grace), url: url.trim() } });
    toast("Monitor created.");
    close();
  }
  return (
    <Confirm title="New monitor" verb="Create monitor" close={close} confirm={() => void create().catch(() => undefined)} busy={busy} problem={problem}>
      <Field label="Job" hint={unknown ? "No recurring job has this name." : "Name or id of a recurring job."}>
        {(props) => <input {...props} className={parts.input} value={job} onChange={(event) => setJob(event.target.value)} />}
      </Field>
      <Field label="Grace in seconds" hint="How long after a run is expected it may succeed.">
        {(props) => <input {...props} className={parts.input} inputMode="numeric" value={grace} onChange={(event) => setGrace(event.target.value)} />}
      </Field>
      <Field label="URL to call">{(props) => <input {...props} className={parts.input} type="url" placeholder="https://" value={url} onChange={(event) => setUrl(event.target.value)} />}</Field>
    </Confirm>
  );
}

/** Filters the rows by tenant; a key of one tenant has no choice. */
function TenantFilter({ placeholder }: { placeholder: string }) {
  const [params, setParams] = useParams();
  const [tenant, setTenant] = useState(params.get("tenant_id") ?? "");
  if (useMe()?.tenant_id) return null;
  return (
    <form
      className={parts.filters}
      onSubmit={(event) => {
        event.preventDefault();
        setParams({ tenant_id: tenant.trim() || null, after: null });
      }}
    >
      <input className={parts.input} aria-label="Tenant" placeholder={placeholder} value={tenant} onChange={(event) => setTenant(event.target.value)} />
      <Button type="submit">Show</Button>
    </form>
  );
}

const OPERATIONS = ["create", "update", "pause", "resume", "delete", "replace", "run", "backfill", "cancel", "replay", "retry", "purge", "configure_tenant", "configure_queue", "configure_target", "set_calendar", "delete_calendar", "set_secret", "delete_secret", "create_monitor", "delete_monitor", "create_group", "close_group", "create_key", "revoke_key"];

export function Audit() {
  const [params, setParams] = useParams();
  const me = useMe();
  const [tenant, setTenant] = useState(params.get("tenant_id") ?? "");
  const [actor, setActor] = useState(params.get("actor") ?? "");
  const read = useApi<Page<AuditEntry>>("/api/v1/audit", { page_size: 50, tenant_id: params.get("tenant_id"), actor: params.get("actor"), operation: params.get("operation"), page_token: params.get("after") }, { keep: true, hold: !!params.get("after") });
  return (
    <>
      <PageHead title="Audit trail" />
      <form
        className={parts.filters}
        onSubmit={(event) => {
          event.preventDefault();
          setParams({ tenant_id: tenant.trim() || null, actor: actor.trim() || null, after: null });
        }}
      >
        {!me?.tenant_id && <input className={parts.input} aria-label="Tenant" placeholder="All tenants" value={tenant} onChange={(event) => setTenant(event.target.value)} />}
        <input className={parts.input} aria-label="Actor" placeholder="Any actor" value={actor} onChange={(event) => setActor(event.target.value)} />
        <Select label="Operation" value={params.get("operation") ?? ""} onChange={(operation) => setParams({ operation: operation || null, after: null })} options={[["", "Any operation"], ...OPERATIONS.map((each): [string, string] => [each, operationWords(each)])]} />
        <Button type="submit">Filter</Button>
      </form>
      <Panel flush label="Audit trail">
        <Reading of={read} what="audit trail" rows={8}>
          {(page) =>
            page.items.length || page.next_page_token ? (
              <>
                <AuditEntries entries={page.items} jobs />
                <Pager page={page} size={50} noun="entry" many="entries" back={page.items.at(-1)?.at} />
              </>
            ) : (
              <Empty>No changes are recorded.</Empty>
            )
          }
        </Reading>
      </Panel>
    </>
  );
}

export function Secrets() {
  const [params] = useParams();
  const can = useCan();
  const me = useMe();
  const [making, setMaking] = useState(false);
  const [deleting, setDeleting] = useState<Secret | null>(null);
  const { act, busy, problem, reset } = useAct();
  const [form, setForm] = useState({ name: "", value: "", tenant: "" });
  const read = useApi<Page<Secret>>("/api/v1/secrets", { page_size: 50, tenant_id: params.get("tenant_id"), page_token: params.get("after") }, { keep: true });
  const columns: Column<Secret>[] = [
    { id: "name", title: "Name", first: true, cell: (secret) => <b>{secret.name}</b> },
    { id: "tenant", title: "Tenant", cell: (secret) => secret.tenant_id },
    { id: "updated", title: "Updated", kind: "nowrap", cell: (secret) => <Time at={secret.updated_at} /> },
    { id: "previous", title: "Previous value until", kind: "nowrap", cell: (secret) => <Time at={secret.previous_until} /> },
    { id: "menu", title: "Actions", kind: "menu", cell: (secret) => <Menu label={`Actions for ${secret.name}`} items={[{ label: "Delete…", red: true, act: () => setDeleting(secret), hidden: !can("delete_secret") }]} /> },
  ];
  const path = (name: string) => `/api/v1/secrets/${encodeURIComponent(name)}`;
  async function save() {
    await act("PUT", path(form.name), { body: { value: form.value, ...(form.tenant ? { tenant_id: form.tenant } : {}) } });
    setForm({ name: "", value: "", tenant: "" });
    toast("Secret stored.");
    setMaking(false);
  }
  async function remove(secret: Secret) {
    await act("DELETE", path(secret.name), { query: { tenant_id: secret.tenant_id } });
    toast("Secret deleted.");
    setDeleting(null);
  }
  const close = () => {
    reset();
    setMaking(false);
    setDeleting(null);
  };
  return (
    <>
      <PageHead
        title="Secrets"
        actions={
          <Can op="set_secret">
            <Button kind="primary" onClick={() => setMaking(true)}>
              Set a secret
            </Button>
          </Can>
        }
      />
      <Lead>Names only: a value that was stored is never shown again. Jobs use one as {"{{secret:name}}"}.</Lead>
      <TenantFilter placeholder="Tenant: default" />
      <Panel flush label="Secrets">
        <Reading of={read} what="list of secrets" rows={4}>
          {(page) =>
            page.items.length ? (
              <>
                <Table label="Secrets" columns={columns} rows={page.items} keyOf={(secret) => `${secret.tenant_id} ${secret.name}`} />
                <Pager page={page} size={50} noun="secret" />
              </>
            ) : (
              <Empty>This tenant has no secrets.</Empty>
            )
          }
        </Reading>
      </Panel>
      {making && (
        <Confirm title="Set a secret" verb="Store" close={close} confirm={() => void save().catch(() => undefined)} busy={busy} problem={problem}>
          <Field label="Name">{(props) => <input {...props} className={parts.input} autoComplete="off" value={form.name} onChange={(event) => setForm({ ...form, name: event.target.value })} />}</Field>
          <Field label="Value">{(props) => <input {...props} className={parts.input} type="password" autoComplete="new-password" value={form.value} onChange={(event) => setForm({ ...form, value: event.target.value })} />}</Field>
          {!me?.tenant_id && <Field label="Tenant">{(props) => <input {...props} className={parts.input} placeholder="default" value={form.tenant} onChange={(event) => setForm({ ...form, tenant: event.target.value })} />}</Field>}
        </Confirm>
      )}
      {deleting && (
        <Confirm title={`Delete ${deleting.name}?`} verb="Delete" danger typed={deleting.name} close={close} confirm={() => void remove(deleting).catch(() => undefined)} busy={busy} problem={problem}>
          <p>Jobs that use it will fail until it is set again. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

const ROLES: [string, string][] = [
  ["viewer", "viewer: read only"],
  ["producer", "producer: creates, changes and runs jobs"],
  ["operator", "operator: also dead letters, secrets and bulk operations"],
  ["admin", "admin: everything, including keys and limits"],
  ["worker", "worker: only claims and settles executions"],
];

export function Keys() {
  const client = useQueryClient();
  const [params] = useParams();
  const me = useMe();
  const can = useCan();
  const { act, busy, problem, reset } = useAct();
  const [making, setMaking] = useState(false);
  const [made, setMade] = useState<MadeKey | null>(null);
  const [revoking, setRevoking] = useState<Key | null>(null);
  const [form, setForm] = useState({ name: "", role: me?.requires_keys ? "viewer" : "admin", tenant: "" });
  const read = useApi<Page<Key>>("/api/v1/keys", { page_size: 100, page_token: params.get("after") }, { keep: true, hold: made !== null });
  const columns: Column<Key>[] = [
    {
      id: "name",
      title: "Name",
      first: true,
      cell: (key) => (
        <span>
          <b>{key.name}</b> {key.key_id === me?.key_id && <Muted>(yours)</Muted>}
        </span>
      ),
    },
    { id: "role", title: "Role", cell: (key) => key.role },
    { id: "tenant", title: "Tenant", cell: (key) => key.tenant_id ?? "all" },
    { id: "id", title: "Id", kind: "nowrap", cell: (key) => <code>{key.key_id}</code> },
    { id: "created", title: "Created", kind: "nowrap", cell: (key) => <Time at={key.created_at} /> },
    { id: "state", title: "State", kind: "nowrap", cell: (key) => (key.revoked_at ? <span>revoked <Time at={key.revoked_at} /></span> : <Badge text="Valid" colour="succeeded" />) },
    { id: "menu", title: "Actions", kind: "menu", cell: (key) => <Menu label={`Actions for ${key.name}`} items={[{ label: "Revoke…", red: true, act: () => setRevoking(key), hidden: !can("revoke_key") || key.revoked_at !== null }]} /> },
  ];
  async function make() {
    const body = { name: form.name, role: form.role, ...(form.tenant ? { tenant_id: form.tenant } : {}) };
    // The first key closes the server: until there is a session, any other read is answered with 401.
    holdPage(!me?.requires_keys);
    try {
      await act("POST", "/api/v1/keys", { body }, async (value) => {
        const key = value as MadeKey;
        setMade(key);
        setMaking(false);
        if (!me?.requires_keys && key.key && key.role !== "worker") {
          await call("POST", "/api/v1/session", { body: { api_key: key.key } });
          await client.refetchQueries({ queryKey: ["/api/v1/me"] });
        }
      });
    } finally {
      holdPage(false);
    }
  }
  async function revoke(key: Key) {
    await act("DELETE", `/api/v1/keys/${key.key_id}`);
    toast(`${key.name} revoked.`);
    setRevoking(null);
  }
  const close = () => {
    reset();
    setMaking(false);
    setRevoking(null);
  };
  return (
    <>
      <PageHead
        title="Keys"
        actions={
          <Can op="create_key">
            <Button kind="primary" onClick={() => setMaking(true)}>
              New key
            </Button>
          </Can>
        }
      />
      <Panel flush label="Keys">
        <Reading of={read} what="list of keys" rows={4}>
          {(page) =>
            page.items.length ? (
              <>
                <Table label="Keys" columns={columns} rows={page.items} keyOf={(key) => key.key_id} />
                <Pager page={page} size={100} noun="key" />
              </>
            ) : (
              <Empty>There are no keys yet, so anyone on this machine can use this server. Creating the first key, which must be an admin key, closes it.</Empty>
            )
          }
        </Reading>
      </Panel>
      {making && (
        <Confirm title="New key" verb="Create" close={close} confirm={() => void make().catch(() => undefined)} busy={busy} problem={problem}>
          {!me?.requires_keys && <p>Once the first key exists, every request needs a key. You will be signed in with it.</p>}
          <Field label="Name" hint="Owner or purpose; shown in the audit trail." error={problem?.errors.find((error) => error.path === "name")?.message}>
            {(props) => <input {...props} className={parts.input} autoComplete="off" value={form.name} onChange={(event) => setForm({ ...form, name: event.target.value })} />}
          </Field>
          <Field label="Role">{(props) => <Select {...props} value={form.role} onChange={(role) => setForm({ ...form, role })} options={ROLES} />}</Field>
          <Field label="Tenant" hint="Leave empty for all tenants." error={problem?.errors.find((error) => error.path === "tenant_id")?.message}>
            {(props) => <input {...props} className={parts.input} autoComplete="off" value={form.tenant} onChange={(event) => setForm({ ...form, tenant: event.target.value })} />}
          </Field>
        </Confirm>
      )}
      {made && (
        <Dialog title={`Key for ${made.name}`} close={() => setMade(null)}>
          <p>This key is shown only once. Store it where its owner can find it.</p>
          <Code label="Key" text={made.key ?? "The response with the key was lost. Revoke this key and create another."} />
          <div className={parts.dialogActions}>
            <Button kind="primary" onClick={() => setMade(null)}>
              I have stored it
            </Button>
          </div>
        </Dialog>
      )}
      {revoking && (
        <Confirm title={`Revoke ${revoking.name}?`} verb="Revoke" danger typed={revoking.name} close={close} confirm={() => void revoke(revoking).catch(() => undefined)} busy={busy} problem={problem}>
          <p>
            Requests and sessions that use this key will fail within seconds. This cannot be undone.
            {revoking.key_id === me?.key_id ? " This is your own key: you will be signed out." : ""}
          </p>
        </Confirm>
      )}
    </>
  );
}
