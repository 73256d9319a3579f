// User JSON, shown without loss: a number that JavaScript would round keeps its digits.

export class ExactNumber {
  constructor(readonly text: string) {}
  toJSON(): unknown {
    const raw = (JSON as unknown as { rawJSON?: (text: string) => unknown }).rawJSON;
    return raw ? raw(this.text) : Number(this.text);
  }
  toString(): string {
    return this.text;
  }
}

type Reviver = (this: unknown, key: string, value: unknown, context?: { source?: string }) => unknown;

/** Parse JSON; numbers that would change become ExactNumber (where the browser exposes their source text). */
export function exactJson(text: string): unknown {
  if (!text) return null;
  const revive: Reviver = (_key, value, context) => {
    const source = context?.source;
    if (typeof value !== "number" || source === undefined) return value;
    return sameNumber(source, value) ? value : new ExactNumber(source);
  };
  return JSON.parse(text, revive as (key: string, value: unknown) => unknown);
}

function sameNumber(source: string, value: number): boolean {
  if (source === String(value)) return true;
  return !/^-?\d{16,}$/.test(source) && source.replace(/[^\d]/g, "").length < 16 && Number.isFinite(value);
}

/** Pretty-printed JSON, with the digits of exact numbers. */
export function pretty(value: unknown, indent = ""): string {
  if (value instanceof ExactNumber) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = indent + "  ";
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((item) => inner + pretty(item, inner)).join(",\n")}\n${indent}]`;
  }
  const entries = Object.entries(value);
  if (!entries.length) return "{}";
  return `{\n${entries.map(([key, item]) => `${inner}${JSON.stringify(key)}: ${pretty(item, inner)}`).join(",\n")}\n${indent}}`;
}

/** A JSON value as YAML: block style, with double quotes around strings that need them. */
export function yaml(value: unknown, indent = ""): string {
  if (value === null || typeof value !== "object" || value instanceof ExactNumber) return scalar(value);
  const entries: [string, unknown][] = Array.isArray(value)
    ? value.map((item) => ["-", item])
    : Object.entries(value).map(([key, item]) => [`${scalar(key)}:`, item]);
  if (!entries.length) return Array.isArray(value) ? "[]" : "{}";
  return entries
    .map(([head, item]) => {
      const nested = item !== null && typeof item === "object" && !(item instanceof ExactNumber) && Object.keys(item).length > 0;
      return nested ? `${indent}${head}\n${yaml(item, indent + "  ")}` : `${indent}${head} ${yaml(item)}`;
    })
    .join("\n");
}

function scalar(value: unknown): string {
  if (value instanceof ExactNumber) return value.text;
  if (typeof value !== "string") return JSON.stringify(value) ?? "null";
  const plain = /^[A-Za-z_][\w./@-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(value);
  return plain ? value : JSON.stringify(value);
}
