// A worker in Node, without any package: it claims executions of its tasks over HTTP, runs up to ten at a time, and reports
// their outcomes. One heartbeat names all that it holds; what it has lost, what was cancelled and what takes too long is aborted by
// an AbortSignal. Ctrl-C returns what is unfinished to the queue, where another worker gets it at once.
//
//     hourbell up                    # in one terminal
//     node worker.mjs                # in another; Node 20 or newer. EXECUTIONS=1 stops after one
//     curl -s http://127.0.0.1:8080/api/v1/jobs -H 'Idempotency-Key: resize-1' -H 'Content-Type: application/json' -d '{
//       "name": "resize", "type": "ONE_TIME", "schedule": {"delay_seconds": 1},
//       "action": {"type": "TASK", "name": "resize", "payload": {"image": "cat.png", "width": 100}}}'
import { setTimeout as sleep } from "node:timers/promises";

const tasks = {
  async resize({ image, width }, { signal }) {
    await sleep(50, undefined, { signal }); // the work; pass `signal` on to fetch and the like
    return `${image} is ${width} pixels wide now`;
  },
};

const CAPACITY = 10;
const url = (process.env.HOURBELL_URL ?? "http://127.0.0.1:8080") + "/internal/v1";
const stop = new AbortController();
const running = new Map(); // by execution id: how to abort it
const runs = new Set();
let session; // the token, once a claim has returned something
let left = Number(process.env.EXECUTIONS ?? Infinity); // executions that may still be claimed

// Sends a call, and repeats it while the server is away: session and fence make all calls safe to repeat.
async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (process.env.HOURBELL_API_KEY) headers.Authorization = `Bearer ${process.env.HOURBELL_API_KEY}`;
  for (;;) {
    try {
      const answer = await fetch(url + path, {
        method: "POST",
        headers,
        body: JSON.stringify(body),
        signal: AbortSignal.any([AbortSignal.timeout(60_000), ...(signal ? [signal] : [])]),
      });
      if (answer.ok) return await answer.json();
      if (answer.status < 500) {
        throw Object.assign(new Error(await answer.text()), { status: answer.status });
      }
    } catch (error) {
      if (error.status || signal?.aborted) throw error;
    }
    await sleep(1_000);
  }
}

async function run({ execution_id: id, fence_token, timeout_seconds, action }) {
  const call = { session_token: session, fence_token };
  const abort = new AbortController();
  running.set(id, abort);
  const limit = AbortSignal.timeout(timeout_seconds * 1000);
  const signal = AbortSignal.any([abort.signal, limit, stop.signal]);
  const began = performance.now();
  let outcome;
  try {
    outcome = { status: "SUCCEEDED", result: await tasks[action.name](action.payload, { id, signal }) };
  } catch (error) {
    outcome = { status: "FAILED", error: String(error), error_kind: limit.aborted ? "timeout" : error.name };
  }
  try {
    if (outcome.status === "FAILED" && (abort.signal.aborted || stop.signal.aborted)) {
      await post(`/executions/${id}/release`, { ...call, interrupted: true }); // no attempt is used
    } else {
      const duration_ms = Math.round(performance.now() - began);
      await post(`/executions/${id}/complete`, { ...call, ...outcome, duration_ms });
      console.log(`${id}: ${outcome.result ?? outcome.error}`);
    }
  } catch (error) {
    console.log(`${id} belongs to another worker by now: ${error.message}`);
  } finally {
    if (running.get(id) === abort) running.delete(id); // a lost one may be running here again
  }
}

async function heartbeats() {
  for (;;) {
    await sleep(5_000, undefined, { ref: false }); // a third of the lease
    const ids = [...running.keys()];
    if (ids.length === 0) continue;
    try {
      const { lost, cancelled } = await post("/executions/heartbeat", { session_token: session, execution_ids: ids });
      for (const id of [...lost, ...cancelled]) running.get(id)?.abort();
    } catch {
      abortAll(); // 409: the session is lost, and all that it held
    }
  }
}

function abortAll() {
  for (const abort of running.values()) abort.abort();
}

process.once("SIGINT", () => stop.abort());
console.log(`waiting for executions of ${Object.keys(tasks)} at ${url}`);
heartbeats();
while (left > 0 && !stop.signal.aborted) {
  try {
    const claim = await post(
      "/executions/claim",
      {
        worker_id: `node-${process.pid}`,
        capacity: Math.min(CAPACITY - running.size, left),
        tasks: Object.keys(tasks),
        wait_seconds: 20,
        session_token: session,
      },
      stop.signal,
    );
    session = claim.session_token ?? session;
    for (const execution of claim.executions) {
      left -= 1;
      const one = run(execution).finally(() => runs.delete(one));
      runs.add(one);
    }
  } catch (error) {
    if (error.status === 409) {
      session = undefined; // lost: the next claim begins another, once all that it held has stopped
      abortAll();
      await Promise.all(runs);
    } else if (!stop.signal.aborted) throw error;
  }
  while (running.size >= CAPACITY) await Promise.race(runs);
}
await Promise.all(runs);
if (session) await post("/sessions/close", { session_token: session });
