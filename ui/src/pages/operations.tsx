// Operations on many jobs or dead letters: in progress and past.
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Link } from "wouter";

import { useAct, useApi } from "../api/hooks";
import type { Operation, Page } from "../api/types";
import { group } from "../lib/time";
import { useParams } from "../lib/url";
import { capital, counted } from "../lib/words";
import { Button, Can, Empty, Failure, Lead, Meter, Muted, PageHead, Panel, Reading, Time } from "../parts/basics";
import { toast } from "../parts/overlays";
import { Pager } from "../parts/pager";
import { Badge } from "../parts/status";
import s from "./pages.module.css";

const FILTER_WORDS: Record<string, string> = { tenant_id: "tenant", job_id: "job", name_prefix: "name begins with", fingerprint: "error", from: "from", to: "until" };

/** A filter in words; instants in the chosen clock. */
function FilterWords({ filter }: { filter: Record<string, unknown> }) {
  const given = Object.entries(filter).filter(([, value]) => value !== null && value !== undefined);
  if (!given.length) return <>everything</>;
  return given.map(([name, value], index) => (
    <span key={name}>
      {index > 0 && ", "}
      {FILTER_WORDS[name] ?? name.replaceAll("_", " ")} {name === "from" || name === "to" ? <Time at={String(value)} mode="absolute" seconds={false} /> : name === "fingerprint" ? String(value).slice(0, 8) : String(value).replaceAll("_", " ")}
    </span>
  ));
}

const STATES = {
  RUNNING: { text: "in progress", colour: "running" },
  DONE: { text: "done", colour: "succeeded" },
  STOPPED: { text: "stopped", colour: "cancelled" },
  FAILED: { text: "failed", colour: "failed" },
};
const DONE_WORDS = { pause: "paused", resume: "resumed", replay: "replayed", purge: "purged" };
const LEFT_WORDS: Record<string, string> = {
  changed_meanwhile: "changed in the meantime",
  duplicate_job: "another job has the unique key",
  ended: "ended",
  gone: "gone",
  in_use: "being changed by another request",
  failed: "the change failed on it",
  invalid_schedule: "schedule cannot be computed",
  job_deleted: "job deleted",
  occurrence_live: "live again",
  underway: "queued or running",
  until_passed: "the end of the pause has passed",
};

export function Progress({ operation }: { operation: Operation }) {
  const { act, busy, problem } = useAct();
  const running = operation.state === "RUNNING";
  const past = operation.done + operation.left;
  // Counting stopped at 10,000: beyond that, the share of the total is unknown until the end.
  const beyond = operation.total_at_least && past >= operation.total;
  async function stop() {
    await act("POST", `/api/v1/operations/${operation.operation_id}/stop`);
    toast("Stopped. The rest is left unchanged.");
  }
  return (
    <div className={s.progress}>
      <div className={s.entryHead}>
        <strong>
          {capital(operation.act)} {counted(operation.total, operation.total_at_least)}
        </strong>
        <Muted>
          <FilterWords filter={operation.filter} />
        </Muted>
        <Badge {...STATES[operation.state]} />
      </div>
      {!(running && beyond) && <Meter of={Math.max(operation.total, past)} part={past} label="Progress" />}
      <div className={s.entryHead} role="status">
        <span>
          {group(operation.done)} {!beyond && `of ${counted(operation.total, operation.total_at_least)} `}
          {DONE_WORDS[operation.act]}
          {beyond && running && " so far"}
          {operation.left > 0 && `, ${group(operation.left)} not changed`}
          {operation.left_reasons.length > 0 && ` (${operation.left_reasons.map((each) => `${LEFT_WORDS[each.code] ?? each.code.replaceAll("_", " ")} ${group(each.count)}`).join(", ")})`}
        </span>
        {running && (
          <Can op="stop_operation">
            <Button small disabled={busy} onClick={() => void stop().catch(() => undefined)}>
              Stop the rest
            </Button>
          </Can>
        )}
        {!running && operation.act === "pause" && operation.done > 0 && <Undo operation={operation} />}
      </div>
      {operation.error && <p>{operation.error}</p>}
      {problem && <Failure problem={problem} />}
    </div>
  );
}

/** Resume what this operation paused. */
function Undo({ operation }: { operation: Operation }) {
  const { act, busy, problem } = useAct();
  async function resume() {
    await act("POST", "/api/v1/operations", { body: { act: "resume", filter: { operation_id: operation.operation_id } } });
    toast("The jobs are being resumed.", { href: "/operations" });
  }
  return (
    <Can op="create_operation">
      <Button small disabled={busy} onClick={() => void resume().catch(() => undefined)}>
        Resume them
      </Button>
      {problem && <Failure problem={problem} />}
    </Can>
  );
}

export function useOperation(id: string | null) {
  const [state, setState] = useState<string>();
  const read = useApi<Operation>(`/api/v1/operations/${id}`, undefined, { enabled: !!id, everySeconds: state === undefined || state === "RUNNING" ? 2 : 30 });
  const client = useQueryClient();
  const found = read.data?.state;
  useEffect(() => {
    setState(found);
    // What it changed is read again; a purge sends no other event.
    if (found && found !== "RUNNING") void client.invalidateQueries({ predicate: (query) => !String(query.queryKey[0]).startsWith("/api/v1/operations/") });
  }, [found, client]);
  return read;
}

export function OperationPage({ id }: { id: string }) {
  const read = useOperation(id);
  return (
    <>
      <PageHead title="Operation" />
      <Reading of={read} what="operation" rows={4}>
        {(operation) => (
          <>
            <Panel flush>
              <Progress operation={operation} />
            </Panel>
            <p style={{ marginTop: 12 }}>
              <Muted>
                Begun by {operation.created_by}, <Time at={operation.created_at} mode="absolute" />
                {operation.reason ? `, because: “${operation.reason}”` : ""}. It continues when this page is closed. <Link href="/operations">All operations</Link>
              </Muted>
            </p>
          </>
        )}
      </Reading>
    </>
  );
}

export function Operations() {
  const [params] = useParams();
  const read = useApi<Page<Operation>>("/api/v1/operations", { page_size: 25, page_token: params.get("after") }, { keep: true, everySeconds: 5 });
  return (
    <>
      <PageHead title="Operations" />
      <Lead>Bulk pauses, resumes, replays and purges. The server carries them out, whether or not a page is open.</Lead>
      <Panel flush label="Operations">
        <Reading of={read} what="list of operations" rows={6}>
          {(page) =>
            page.items.length === 0 ? (
              <Empty>There are no operations yet. To start one, filter the jobs or open the dead letters.</Empty>
            ) : (
              <>
                <ol className={s.entries}>
                  {page.items.map((operation) => (
                    <li key={operation.operation_id} style={{ padding: 0 }}>
                      <Progress operation={operation} />
                      <p style={{ padding: "0 16px 12px" }}>
                        <Muted>
                          <Link href={`/operations/${operation.operation_id}`}>{operation.operation_id}</Link> by {operation.created_by}, <Time at={operation.created_at} mode="absolute" />
                          {operation.reason ? `, “${operation.reason}”` : ""}
                        </Muted>
                      </p>
                    </li>
                  ))}
                </ol>
                <Pager page={page} size={25} noun="operation" />
              </>
            )
          }
        </Reading>
      </Panel>
    </>
  );
}
