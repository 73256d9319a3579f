// What this browser remembers, and links to the pages that are not in the navigation.
import { Link } from "wouter";

import { useCan, useMe } from "../api/hooks";
import { change, useSettings } from "../lib/settings";
import { localZone } from "../lib/time";
import { Button, Muted, PageHead, Panel, styles as parts } from "../parts/basics";
import { Field, Select } from "../parts/fields";
import s from "./pages.module.css";

export function SettingsPage() {
  const settings = useSettings();
  const me = useMe();
  return (
    <>
      <PageHead title="Settings" />
      <div className={s.form}>
        <fieldset>
          <legend>Display</legend>
          <div className={s.cols}>
            <Field label="Clock">
              {(props) => <Select {...props} value={settings.clock} onChange={(clock) => change({ clock: clock as "utc" })} options={[["utc", "UTC"], ["local", `Local: ${localZone}`], ["job", "Each job in its own zone"]]} />}
            </Field>
            <Field label="Theme">
              {(props) => <Select {...props} value={settings.theme} onChange={(theme) => change({ theme: theme as "dark" })} options={[["system", "Same as the system"], ["light", "Light"], ["dark", "Dark"]]} />}
            </Field>
            <Field label="Rows">
              {(props) => <Select {...props} value={settings.density} onChange={(density) => change({ density: density as "cosy" })} options={[["cosy", "Roomy"], ["compact", "Compact"]]} />}
            </Field>
          </div>
          <div className={parts.checks}>
            <label>
              <input type="checkbox" checked={settings.shortcuts} onChange={(event) => change({ shortcuts: event.target.checked })} /> Keyboard shortcuts
            </label>
            <label>
              <input type="checkbox" checked={settings.live} onChange={(event) => change({ live: event.target.checked })} /> Refresh automatically
            </label>
          </div>
          <div>
            <Button onClick={() => change({ columns: {} })}>Reset list columns</Button>
          </div>
          <Muted>These preferences and the saved views are kept only in this browser.</Muted>
        </fieldset>
        <Panel title="About">
          <dl className={parts.facts}>
            <dt>Version</dt>
            <dd>{me?.version}</dd>
            <dt>Key</dt>
            <dd>
              {me?.name}, {me?.role}, {me?.tenant_id ?? "all tenants"}
            </dd>
            <dt>Licence</dt>
            <dd>
              Apache-2.0; <a href="/licences.txt">licences of the libraries used here</a>
            </dd>
          </dl>
        </Panel>
      </div>
    </>
  );
}

const PAGES: { href: string; title: string; text: string; op?: string }[] = [
  { href: "/forecast", title: "Forecast", text: "The load of the coming hours, minute by minute" },
  { href: "/tenants", title: "Tenants", text: "Shares, weights and limits" },
  { href: "/queues", title: "Queues", text: "What is waiting, and which workers serve it" },
  { href: "/targets", title: "Targets", text: "Webhook hosts, their limits and circuits" },
  { href: "/tasks", title: "Tasks", text: "Runs, durations and what waits, by task and host" },
  { href: "/fleet", title: "Fleet", text: "Leader, processes and workers" },
  { href: "/operations", title: "Operations", text: "Bulk operations, in progress and past" },
  { href: "/groups", title: "Groups", text: "One callback when many executions have ended" },
  { href: "/calendars", title: "Calendars", text: "Dates that schedules skip" },
  { href: "/monitors", title: "Monitors", text: "Alerts for jobs that do not succeed in time" },
  { href: "/audit", title: "Audit trail", text: "What was changed, and by whom", op: "list_audit" },
  { href: "/secrets", title: "Secrets", text: "Names of stored values for webhooks", op: "list_secrets" },
  { href: "/keys", title: "Keys", text: "Create and revoke API keys", op: "list_keys" },
  { href: "/reference", title: "API", text: "Every operation, with examples" },
  { href: "/settings", title: "Settings", text: "Clock, theme, shortcuts" },
];

export function More() {
  const can = useCan();
  return (
    <>
      <PageHead title="More" />
      <div className={s.more}>
        {PAGES.filter((page) => !page.op || can(page.op)).map((page) => (
          <Link key={page.href} href={page.href}>
            <b>{page.title}</b>
            <Muted>{page.text}</Muted>
          </Link>
        ))}
      </div>
    </>
  );
}
