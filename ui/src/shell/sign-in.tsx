import { useEffect, useRef, useState, type FormEvent } from "react";

import { ApiProblem, call } from "../api/client";
import { Button, Code, styles as parts } from "../parts/basics";
import { Field } from "../parts/fields";
import { Logo } from "./shell";
import s from "./shell.module.css";

/** Exchanges an API key for a session. The page does not keep the key. */
export function SignIn({ signedIn }: { signedIn: () => Promise<unknown> }) {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<ApiProblem | null>(null);
  const [busy, setBusy] = useState(false);
  const [wait, setWait] = useState(0);
  const input = useRef<HTMLInputElement>(null);

  useEffect(() => {
    document.title = "Sign in · Hourbell";
    input.current?.focus();
  }, []);

  useEffect(() => {
    if (wait <= 0) return;
    const timer = setTimeout(() => setWait(wait - 1), 1000);
    return () => clearTimeout(timer);
  }, [wait]);

  async function submit(event: FormEvent) {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await call("POST", "/api/v1/session", { body: { api_key: key.trim() } });
      setKey("");
      await signedIn();
    } catch (error) {
      if (!(error instanceof ApiProblem)) throw error;
      setProblem(error);
      setWait(error.retryAfterSeconds ?? 0);
      input.current?.select();
    } finally {
      setBusy(false);
    }
  }

  return (
    <main className={s.signIn}>
      <form className={s.signInBox} onSubmit={(event) => void submit(event)}>
        <h1>
          <Logo size={28} /> Hourbell
        </h1>
        <Field label="API key" error={problem && words(problem)}>
          {(props) => <input {...props} ref={input} className={parts.input} type="password" autoComplete="current-password" placeholder="hb_…" value={key} onChange={(event) => setKey(event.target.value)} />}
        </Field>
        <Button kind="primary" type="submit" disabled={busy || wait > 0 || !key.trim()}>
          {wait > 0 ? `Wait ${wait} s` : busy ? "Signing in …" : "Sign in"}
        </Button>
        <details>
          <summary>How do I get a key?</summary>
          <p className={parts.muted}>An administrator creates one on the Keys page, or on the server with</p>
          <Code label="Command" text="hourbell keys create --role viewer --name ME" />
          <p className={parts.muted}>This page does not keep the key: it gets a session cookie, which expires after 12 hours without use.</p>
        </details>
      </form>
    </main>
  );
}

function words(problem: ApiProblem): string {
  if (problem.status === 401) return "This key is unknown or was revoked.";
  if (problem.status === 404) return "This server does not support sign-in yet. To use the dashboard, start it without keys on loopback.";
  return problem.detail || problem.title;
}
