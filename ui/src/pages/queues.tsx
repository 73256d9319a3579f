// Queues and targets: what is waiting, which workers serve it, and the limits.
import { useState } from "react";
import { Link } from "wouter";

import { useApi, useCan } from "../api/hooks";
import type { Circuit, Page, Queue, Target, Worker } from "../api/types";
import { useParams } from "../lib/url";
import { counted, retryWords, span } from "../lib/words";
import { BacklogPanel } from "../parts/backlog";
import { Button, ButtonLink, Can, Code, Empty, Lead, Muted, Note, PageHead, Panel, Reading, styles as parts, Time } from "../parts/basics";
import { Menu } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { Table, type Column } from "../parts/table";
import { workerColumns } from "./fleet";
import { EditLimits, limitWords, QUEUE_SETTINGS, TARGET_SETTINGS, type LimitsLike } from "./limits";
import s from "./pages.module.css";
import { Counts, OnUse } from "./tenants";

export function Queues() {
  const [params] = useParams();
  const can = useCan();
  const [editing, setEditing] = useState<Queue | null>(null);
  const read = useApi<Page<Queue>>("/api/v1/queues", { page_size: 100, page_token: params.get("after") }, { keep: true });
  const columns: Column<Queue>[] = [
    {
      id: "queue",
      title: "Queue",
      first: true,
      cell: (queue) => (
        <>
          <Link className={parts.name} href={`/queues/${encodeURIComponent(queue.queue)}`}>
            {queue.queue}
          </Link>
          {queue.created_on_use && <OnUse />}
        </>
      ),
    },
    { id: "counts", title: "Ready", kind: "number", cell: (queue) => <QueueCount name={queue.queue} count="ready" /> },
    { id: "parked", title: "Parked", kind: "number", cell: (queue) => <QueueCount name={queue.queue} count="parked" /> },
    { id: "running", title: "Running", kind: "number", cell: (queue) => <QueueCount name={queue.queue} count="running" /> },
    { id: "workers", title: "Workers", kind: "number", cell: (queue) => <QueueCount name={queue.queue} count="workers" /> },
    { id: "limits", title: "Limits", cell: (queue) => limitWords(queue as LimitsLike) },
    { id: "timeout", title: "Default timeout", cell: (queue) => (queue.default_timeout_seconds ? span(queue.default_timeout_seconds) : "–") },
    {
      id: "menu",
      title: "Actions",
      kind: "menu",
      cell: (queue) => (
        <Menu
          label={`Actions for ${queue.queue}`}
          items={[
            { label: "Jobs", href: `/jobs?queue=${encodeURIComponent(queue.queue)}` },
            { label: "Executions", href: `/executions?queue=${encodeURIComponent(queue.queue)}` },
            { label: "Limits…", act: () => setEditing(queue), hidden: !can("set_queue") },
          ]}
        />
      ),
    },
  ];
  return (
    <>
      <PageHead title="Queues" actions={<ButtonLink href="/targets">Webhook targets</ButtonLink>} />
      <Panel flush label="Queues">
        <Reading of={read} what="list of queues" rows={6}>
          {(page) =>
            page.items.length === 0 ? (
              <Empty>There are no queues yet. A job that names a queue creates it.</Empty>
            ) : (
              <>
                <Table label="Queues" columns={columns} rows={page.items} keyOf={(queue) => queue.queue} />
                <Pager page={page} size={100} noun="queue" />
              </>
            )
          }
        </Reading>
      </Panel>
      {editing && <Edit queue={editing} close={() => setEditing(null)} />}
    </>
  );
}

/** Lists have no counts; each row reads its own, from one shared response. */
function QueueCount({ name, count }: { name: string; count: "ready" | "parked" | "running" | "workers" }) {
  const { data } = useApi<Queue>(`/api/v1/queues/${encodeURIComponent(name)}`);
  return <>{counted(data?.counts?.[count], data?.counts?.at_least.includes(count))}</>;
}

function Edit({ queue, close }: { queue: Queue; close: () => void }) {
  return <EditLimits title={`Limits of the queue ${queue.queue}`} name={queue.queue} path={`/api/v1/queues/${encodeURIComponent(queue.queue)}`} settings={QUEUE_SETTINGS} current={queue as unknown as LimitsLike & { version: number } & Record<string, unknown>} kept={["default_retry_policy"]} close={close} />;
}

export function QueuePage({ name }: { name: string }) {
  const read = useApi<Queue>(`/api/v1/queues/${encodeURIComponent(name)}`);
  const workers = useApi<Page<Worker>>("/api/v1/workers", { state: "alive", page_size: 100 });
  const [editing, setEditing] = useState(false);
  const serving = (workers.data?.items ?? []).filter((worker) => worker.queues === null || worker.queues.includes(name));
  const encoded = encodeURIComponent(name);
  return (
    <>
      <PageHead
        title={name}
        beside={<Muted>queue</Muted>}
        actions={
          <>
            <ButtonLink href={`/jobs?queue=${encoded}`}>Jobs</ButtonLink>
            <Can op="set_queue">
              <Button onClick={() => setEditing(true)}>Limits…</Button>
            </Can>
          </>
        }
      />
      <Reading of={read} what="queue" rows={6}>
        {(queue) => (
          <div className={s.stack}>
            {queue.counts?.workers === 0 && (
              <Note>
                No live worker serves this queue. Start one: <code>HOURBELL_WORKER_QUEUES={name} hourbell worker</code>
              </Note>
            )}
            <Counts
              items={[
                ["Ready", counted(queue.counts?.ready, queue.counts?.at_least.includes("ready")), `/executions?queue=${encoded}&status=QUEUED`],
                ["Parked", counted(queue.counts?.parked, queue.counts?.at_least.includes("parked")), null],
                ["Running", counted(queue.counts?.running, queue.counts?.at_least.includes("running")), `/executions?queue=${encoded}&status=RUNNING`],
                ["Workers", counted(queue.counts?.workers), "/fleet"],
              ]}
            />
            <BacklogPanel waiting={queue.waiting_for} />
            <Panel title="Settings">
              <dl className={parts.facts}>
                <dt>Limits</dt>
                <dd>{limitWords(queue as LimitsLike)}</dd>
                <dt>Default timeout</dt>
                <dd>{queue.default_timeout_seconds ? span(queue.default_timeout_seconds) : <Muted>default</Muted>}</dd>
                <dt>Default retries</dt>
                <dd>{queue.default_retry_policy ? retryWords(queue.default_retry_policy) : <Muted>default</Muted>}</dd>
              </dl>
            </Panel>
            <Panel title="Workers serving this queue" flush>
              {workers.data === undefined ? (
                <Reading of={workers} what="list of workers" rows={3}>
                  {() => null}
                </Reading>
              ) : serving.length === 0 ? (
                <Empty action={<Code label="Command" text="hourbell worker" />}>None.</Empty>
              ) : (
                <Table label="Workers" columns={workerColumns()} rows={serving} keyOf={(worker) => worker.session_id} />
              )}
            </Panel>
            {editing && <Edit queue={queue} close={() => setEditing(false)} />}
          </div>
        )}
      </Reading>
    </>
  );
}

export function Targets() {
  const [params] = useParams();
  const can = useCan();
  const [editing, setEditing] = useState<Target | null>(null);
  const read = useApi<Page<Target>>("/api/v1/targets", { page_size: 100, page_token: params.get("after") }, { keep: true });
  const circuits = useApi<{ items: Circuit[] }>("/api/v1/circuits");
  const columns: Column<Target>[] = [
    { id: "host", title: "Host", first: true, cell: (target) => <b>{target.host}</b> },
    { id: "limits", title: "Limits", cell: (target) => limitWords(target as LimitsLike) },
    { id: "menu", title: "Actions", kind: "menu", cell: (target) => <Menu label={`Actions for ${target.host}`} items={[{ label: "Limits…", act: () => setEditing(target), hidden: !can("set_target") }]} /> },
  ];
  const open: Column<Circuit>[] = [
    { id: "host", title: "Target", first: true, cell: (circuit) => <b>{circuit.endpoint ?? circuit.host}</b> },
    { id: "tenant", title: "Tenant", cell: (circuit) => circuit.tenant_id ?? "–" },
    { id: "failures", title: "Failures", kind: "number", cell: (circuit) => counted(circuit.failures) },
    { id: "since", title: "Since", cell: (circuit) => <Time at={circuit.since} /> },
    { id: "until", title: "Next probe", cell: (circuit) => <Time at={circuit.open_until} /> },
    { id: "node", title: "Worker process", cell: (circuit) => circuit.node ?? "–" },
  ];
  return (
    <>
      <PageHead title="Targets" />
      <Lead>Hosts that webhooks call. A circuit opens when requests keep failing: further requests are delayed for a while, without using up attempts.</Lead>
      <div className={s.stack}>
        <Panel title="Open circuits" flush>
          <Reading of={circuits} what="list of circuits" rows={2}>
            {({ items }) => (items.length ? <Table label="Open circuits" columns={open} rows={items} keyOf={(circuit) => `${circuit.host} ${circuit.endpoint} ${circuit.tenant_id} ${circuit.node}`} /> : <Empty>All circuits are closed.</Empty>)}
          </Reading>
        </Panel>
        <Panel title="Hosts" flush>
          <Reading of={read} what="list of targets" rows={4}>
            {(page) =>
              page.items.length ? (
                <>
                  <Table label="Targets" columns={columns} rows={page.items} keyOf={(target) => target.host} />
                  <Pager page={page} size={100} noun="host" />
                </>
              ) : (
                <Empty>No hosts have limits.</Empty>
              )
            }
          </Reading>
        </Panel>
      </div>
      {editing && <EditLimits title={`Limits of ${editing.host}`} name={editing.host} path={`/api/v1/targets/${encodeURIComponent(editing.host)}`} settings={TARGET_SETTINGS} current={editing as unknown as LimitsLike & { version: number } & Record<string, unknown>} close={() => setEditing(null)} />}
    </>
  );
}
