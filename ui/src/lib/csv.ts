// Rows as comma-separated values (RFC 4180).
import { ExactNumber, pretty } from "./json";

/** A header line with all field names, then one line per row. Objects and lists are JSON. */
export function csvOf(rows: Record<string, unknown>[]): string {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const lines = [names.map(quoted), ...rows.map((row) => names.map((name) => cell(row[name])))];
  return lines.map((line) => `${line.join(",")}\r\n`).join("");
}

function cell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean" || value instanceof ExactNumber) return String(value);
  return quoted(typeof value === "string" ? value : pretty(value).replace(/\n\s*/g, " "));
}

function quoted(text: string): string {
  // A spreadsheet would evaluate text that begins like a formula.
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
