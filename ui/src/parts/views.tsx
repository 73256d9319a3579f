// Saved views of a list, and its rows as a file.
import { useState } from "react";
import { Link, useLocation } from "wouter";

import { ApiProblem, get, type Query } from "../api/client";
import type { Page } from "../api/types";
import { csvOf } from "../lib/csv";
import { pretty } from "../lib/json";
import { change, useSettings } from "../lib/settings";
import { group } from "../lib/time";
import { useParams } from "../lib/url";
import { plural } from "../lib/words";
import { Button, styles as s } from "./basics";
import { Field } from "./fields";
import { Confirm, Menu, toast } from "./overlays";

const MOST_ROWS = 10_000;
const PAGE = 500;

type Row = Record<string, unknown>;

/** All rows that match a filter, newest first, up to a limit. */
async function rowsOf(path: string, query: Query): Promise<{ rows: Row[]; more: boolean }> {
  const rows: Row[] = [];
  let token: string | null = null;
  do {
    const page: Page<Row> = await get<Page<Row>>(path, { ...query, page_size: PAGE, page_token: token }, { exact: true });
    rows.push(...page.items);
    token = page.next_page_token;
  } while (token && rows.length < MOST_ROWS);
  return { rows, more: token !== null };
}

function download(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Actions on the list with its current filter. `query` is the API query, without the page. */
export function Views({ list, path, query }: { list: string; path: string; query: Query }) {
  const { views } = useSettings();
  const [params] = useParams();
  const [here] = useLocation();
  const [saving, setSaving] = useState(false);
  const [busy, setBusy] = useState(false);
  const saved = views[list] ?? [];
  async function save(kind: "csv" | "json") {
    setBusy(true);
    try {
      const { rows, more } = await rowsOf(path, query);
      download(`${list}.${kind}`, kind === "csv" ? "text/csv" : "application/json", kind === "csv" ? csvOf(rows) : `${pretty(rows)}\n`);
      toast(more ? `Exported the newest ${group(rows.length)} rows; there are more.` : `${plural(rows.length, "row")} exported.`);
    } catch (error) {
      toast(`The export failed. ${error instanceof ApiProblem ? error.detail : String(error)}`);
    } finally {
      setBusy(false);
    }
  }
  return (
    <>
      <Menu
        label="Saved views and export"
        items={[
          ...saved.map((view) => ({ label: view.name, href: view.query ? `${here}?${view.query}` : here })),
          ...(saved.length ? [null] : []),
          { label: "Saved views…", act: () => setSaving(true) },
          { label: "Export as CSV", act: () => void save("csv"), hidden: busy },
          { label: "Export as JSON", act: () => void save("json"), hidden: busy },
        ]}
      >
        {busy ? "Exporting …" : "Views"}
      </Menu>
      {saving && <SavedViews list={list} query={withoutPage(params)} close={() => setSaving(false)} />}
    </>
  );
}

function withoutPage(params: URLSearchParams): string {
  const kept = new URLSearchParams(params);
  kept.delete("after");
  kept.delete("operation");
  return kept.toString();
}

function SavedViews({ list, query, close }: { list: string; query: string; close: () => void }) {
  const { views } = useSettings();
  const [here] = useLocation();
  const [name, setName] = useState("");
  const saved = views[list] ?? [];
  const set = (next: typeof saved) => change({ views: { ...views, [list]: next } });
  function save() {
    set([...saved.filter((view) => view.name !== name.trim()), { name: name.trim(), query }].slice(-20));
    close();
  }
  return (
    <Confirm title="Saved views" verb="Save this view" waiting={!name.trim()} close={close} confirm={save}>
      {saved.length > 0 && (
        <ul className={s.views} aria-label="Saved views">
          {saved.map((view) => (
            <li key={view.name}>
              <Link href={view.query ? `${here}?${view.query}` : here} onClick={close}>
                {view.name}
              </Link>
              <Button small kind="quiet" aria-label={`Remove ${view.name}`} onClick={() => set(saved.filter((each) => each !== view))}>
                Remove
              </Button>
            </li>
          ))}
        </ul>
      )}
      <Field label="Name of the view" hint={`Saves the current filter (${query ? decodeURIComponent(query.replaceAll("+", " ")).replaceAll("&", ", ") : "none"}), only in this browser.`}>
        {(props) => <input {...props} className={s.input} autoComplete="off" maxLength={60} value={name} onChange={(event) => setName(event.target.value)} />}
      </Field>
    </Confirm>
  );
}
