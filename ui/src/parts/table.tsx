// A table of rows from the server: selectable columns, cards on a phone, j and k to move between rows.
import { ArrowDown, ArrowUp } from "lucide-react";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { useLocation } from "wouter";

import { typing } from "../lib/keys";
import { settings } from "../lib/settings";
import { classes, styles as s } from "./basics";

export interface Column<T> {
  id: string;
  title: string;
  cell: (row: T) => ReactNode;
  kind?: "number" | "cut" | "nowrap" | "menu";
  first?: boolean; // the heading of a card
  unlabelled?: boolean; // on a card
  wide?: boolean; // not on a card
  newestFirst?: boolean; // the server orders the rows by it
  order?: (row: T) => string | number; // by which the rows of this page can be sorted
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  keyOf: (row: T) => string;
  nameOf?: (row: T) => string; // the name of its checkbox
  open?: (row: T) => string; // where Enter leads
  selected?: Set<string>;
  select?: (keys: Set<string>) => void;
  act?: (key: string, row: T) => boolean; // single letters on the current row
}

export function Table<T>({ label, columns, rows: given, keyOf, nameOf = keyOf, open, selected, select, act }: Props<T>) {
  const body = useRef<HTMLTableSectionElement>(null);
  const [, navigate] = useLocation();
  const [sorted, setSorted] = useState<{ id: string; down: boolean } | null>(null);
  const order = columns.find((column) => column.id === sorted?.id)?.order;
  const rows = order ? [...given].sort((a, b) => compare(order(a), order(b)) * (sorted?.down ? -1 : 1)) : given;

  /** Ascending, then descending, then as the server ordered them. */
  function sortBy(id: string) {
    setSorted(sorted?.id !== id ? { id, down: false } : sorted.down ? null : { id, down: true });
  }

  useEffect(() => {
    function move(event: KeyboardEvent) {
      if (!settings().shortcuts || typing(event) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const all = Array.from(body.current?.querySelectorAll<HTMLTableRowElement>("tr") ?? []);
      const current = all.findIndex((row) => row.contains(document.activeElement));
      if (event.key === "j" || event.key === "k") {
        const next = all[Math.max(0, Math.min(all.length - 1, current + (event.key === "j" ? 1 : -1)))];
        next?.querySelector<HTMLElement>("a")?.focus();
        event.preventDefault();
        return;
      }
      const row = rows[current];
      if (!row) return;
      if (event.key === "x" && select && selected) toggle(keyOf(row));
      else if (event.key === "Enter" && open && document.activeElement?.tagName === "TR") navigate(open(row));
      else if (act?.(event.key, row)) event.preventDefault();
    }
    document.addEventListener("keydown", move);
    return () => document.removeEventListener("keydown", move);
  });

  function toggle(key: string) {
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    select?.(next);
  }

  const all = rows.length > 0 && rows.every((row) => selected?.has(keyOf(row)));
  return (
    <div className={s.tableBox}>
      <table className={classes(s.table, s.cards)} aria-label={label}>
        <thead>
          <tr>
            {select && (
              <td className={s.checkCell}>
                <input type="checkbox" aria-label="Select all on this page" checked={all} onChange={() => select(all ? new Set() : new Set(rows.map(keyOf)))} />
              </td>
            )}
            {columns.map((column) => (
              <th key={column.id} scope="col" aria-sort={sorted?.id === column.id ? (sorted.down ? "descending" : "ascending") : column.newestFirst && !sorted ? "descending" : undefined} className={column.kind === "number" ? s.number : undefined}>
                {column.kind === "menu" ? (
                  <span className="visually-hidden">{column.title}</span>
                ) : column.order ? (
                  <button type="button" className={s.sorter} title="Sort the rows of this page" onClick={() => sortBy(column.id)}>
                    {column.title}
                    {sorted?.id === column.id && (sorted.down ? <ArrowDown size={12} aria-hidden className={s.sorted} /> : <ArrowUp size={12} aria-hidden className={s.sorted} />)}
                  </button>
                ) : (
                  column.title
                )}
                {column.newestFirst && !sorted && <ArrowDown size={12} aria-hidden className={s.sorted} />}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {rows.map((row) => (
            <tr key={keyOf(row)} data-selected={selected?.has(keyOf(row))}>
              {select && (
                <td className={s.checkCell}>
                  <input type="checkbox" aria-label={`Select ${nameOf(row)}`} checked={selected?.has(keyOf(row)) ?? false} onChange={() => toggle(keyOf(row))} />
                </td>
              )}
              {columns.map((column) => (
                <td
                  key={column.id}
                  className={classes(column.kind === "menu" ? s.menuCell : column.kind && s[column.kind], column.first && s.first, column.wide && s.wideOnly)}
                  data-label={column.first || column.unlabelled || column.kind === "menu" ? undefined : column.title}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function compare(a: string | number, b: string | number): number {
  return typeof a === "string" && typeof b === "string" ? a.localeCompare(b) : Number(a) - Number(b) || 0;
}

export function TableFooter({ children }: { children: ReactNode }) {
  return <div className={s.footer}>{children}</div>;
}
