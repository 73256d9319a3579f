// Every operation of the API, from the document that the server generates.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { call, get, newKey, type ApiProblem } from "../api/client";
import { useCan } from "../api/hooks";
import { exactJson, pretty } from "../lib/json";
import { capital } from "../lib/words";
import { Button, Code, Empty, Failure, Lead, Loading, Muted, PageHead, Panel, styles as parts } from "../parts/basics";
import { Field } from "../parts/fields";
import { Confirm } from "../parts/overlays";
import s from "./pages.module.css";

interface Schema {
  $ref?: string;
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  properties?: Record<string, Schema>;
  items?: Schema;
  oneOf?: Schema[];
  anyOf?: Schema[];
  required?: string[];
  description?: string;
  default?: unknown;
  format?: string;
  minimum?: number;
  maximum?: number;
}

interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema: Schema;
  example?: string;
}

interface Described {
  operationId: string;
  summary: string;
  description?: string;
  parameters: Parameter[];
  requestBody?: { content: Record<string, { schema: Schema; example?: unknown }> };
  responses: Record<string, { description: string; content?: Record<string, { schema: Schema }> }>;
  "x-roles"?: string[];
}

interface Document {
  info: { title: string; version: string; description: string };
  paths: Record<string, Record<string, Described>>;
  components: { schemas: Record<string, Schema> };
}

export function Reference() {
  const read = useQuery<Document, ApiProblem>({ queryKey: ["/schema/openapi.json"], queryFn: () => get<Document>("/schema/openapi.json"), staleTime: Infinity });
  const [text, setText] = useState("");
  const groups = useMemo(() => grouped(read.data, text), [read.data, text]);
  return (
    <>
      <PageHead title="API" />
      {read.error && <Failure problem={read.error} again={() => void read.refetch()} />}
      {!read.data ? (
        !read.error && <Loading rows={10} />
      ) : (
        <>
          <Lead>
            <Prose text={read.data.info.description} />
          </Lead>
          <div className={parts.filters}>
            <input className={parts.input} style={{ maxWidth: 360 }} aria-label="Search operations" placeholder="Search operations" value={text} onChange={(event) => setText(event.target.value)} />
            <a href="/schema/openapi.json">openapi.json</a>
          </div>
          <div className={s.stack}>
            {groups.map(([name, operations]) => (
              <Panel key={name} title={name} flush>
                {operations.map(([method, path, operation]) => (
                  <Operation key={method + path} method={method} path={path} operation={operation} schemas={read.data.components.schemas} />
                ))}
              </Panel>
            ))}
            {groups.length === 0 && <Empty>No operations match.</Empty>}
          </div>
        </>
      )}
    </>
  );
}

/** Text of the document, in which names stand between backquotes. */
function Prose({ text }: { text: string }) {
  return text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part));
}

type Entry = [string, string, Described];

function grouped(document: Document | undefined, text: string): [string, Entry[]][] {
  const groups = new Map<string, Entry[]>();
  const wanted = text.trim().toLowerCase();
  for (const [path, methods] of Object.entries(document?.paths ?? {})) {
    for (const [method, operation] of Object.entries(methods)) {
      if (wanted && !`${method} ${path} ${operation.summary} ${operation.operationId}`.toLowerCase().includes(wanted)) continue;
      const [, first, , third] = path.split("/");
      const name = first === "api" ? capital((third ?? "api").replaceAll("-", " ")) : first === "internal" ? `Worker calls: ${third ?? ""}` : "Server";
      groups.set(name, [...(groups.get(name) ?? []), [method.toUpperCase(), path, operation]]);
    }
  }
  return [...groups];
}

function Operation({ method, path, operation, schemas }: { method: string; path: string; operation: Described; schemas: Record<string, Schema> }) {
  const [open, setOpen] = useState(false);
  return (
    <details className={s.opRow} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className={s.verb}>{method}</span> <code>{path}</code> <Muted>{operation.summary}</Muted>
      </summary>
      {open && <Body method={method} path={path} operation={operation} schemas={schemas} />}
    </details>
  );
}

function Body({ method, path, operation, schemas }: { method: string; path: string; operation: Described; schemas: Record<string, Schema> }) {
  const example = Object.values(operation.requestBody?.content ?? {})[0]?.example;
  const keyed = operation.parameters.some((parameter) => parameter.name === "Idempotency-Key");
  const answers = Object.entries(operation.responses);
  return (
    <div className={s.stack} style={{ marginTop: 12 }}>
      {operation.description && (
        <p>
          <Prose text={operation.description} />
        </p>
      )}
      <p>
        <Muted>
          Roles: {operation["x-roles"]?.join(", ") ?? "no key needed"} · <code>{operation.operationId}</code>
        </Muted>
      </p>
      {operation.parameters.length > 0 && (
        <div className={parts.tableBox}>
          <table className={parts.table}>
            <thead>
              <tr>
                <th scope="col">Parameter</th>
                <th scope="col">In</th>
                <th scope="col">Type</th>
                <th scope="col">About</th>
              </tr>
            </thead>
            <tbody>
              {operation.parameters.map((parameter) => (
                <tr key={parameter.in + parameter.name}>
                  <td>
                    <code>{parameter.name}</code>
                    {parameter.required ? " *" : ""}
                  </td>
                  <td>{parameter.in}</td>
                  <td>{typeWords(parameter.schema)}</td>
                  <td>
                    <Prose text={parameter.description ?? parameter.schema.description ?? ""} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {example !== undefined && (
        <details>
          <summary>Example body</summary>
          <Code label="Example body" text={pretty(example)} />
        </details>
      )}
      <details>
        <summary>Answers: {answers.map(([status]) => status).join(", ")}</summary>
        <ul>
          {answers.map(([status, answer]) => {
            const schema = Object.values(answer.content ?? {})[0]?.schema;
            return (
              <li key={status} style={{ padding: "6px 0" }}>
                <b>{status}</b> {answer.description}
                {schema && Number(status) < 300 && <Code label={`Response ${status}`} text={pretty(exampleOf(schema, schemas))} />}
              </li>
            );
          })}
        </ul>
      </details>
      <Code label="With curl" text={curlOf(method, path, operation.parameters, keyed, example)} />
      <Try method={method} path={path} operation={operation} example={example} keyed={keyed} />
    </div>
  );
}

export function typeWords(schema: Schema): string {
  if (schema.enum) return schema.enum.map(String).join(" | ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.items) return `list of ${typeWords(schema.items)}`;
  const several = schema.oneOf ?? schema.anyOf;
  if (several) return several.map(typeWords).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").at(-1) ?? "";
  const name = Array.isArray(schema.type) ? schema.type.join(" or ") : (schema.type ?? "any");
  return schema.format ? `${name}, ${schema.format}` : name;
}

/** An example value for a schema: its default, or something of the right type. */
export function exampleOf(schema: Schema, schemas: Record<string, Schema>, depth = 0): unknown {
  if (depth > 20) return {};
  if (schema.$ref) return exampleOf(schemas[schema.$ref.split("/").at(-1) ?? ""] ?? {}, schemas, depth + 1);
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const several = schema.oneOf ?? schema.anyOf;
  const one = several?.find((each) => each.type !== "null");
  if (one) return exampleOf(one, schemas, depth + 1);
  if (schema.properties) {
    const required = schema.required ?? Object.keys(schema.properties);
    return Object.fromEntries(required.map((name) => [name, exampleOf(schema.properties?.[name] ?? {}, schemas, depth + 1)]));
  }
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === "array") return schema.items ? [exampleOf(schema.items, schemas, depth + 1)] : [];
  if (type === "integer" || type === "number") return schema.minimum ?? 1;
  if (type === "boolean") return true;
  if (type === "object") return {};
  if (schema.format === "date-time") return "2027-01-01T00:00:00Z";
  return type === "string" ? "text" : null;
}

function curlOf(method: string, path: string, parameters: Parameter[], keyed: boolean, example: unknown): string {
  const filled = path.replace(/\{(\w+)\}/g, (whole, name) => parameters.find((parameter) => parameter.name === name)?.example ?? whole);
  const lines = [`curl -s ${method === "GET" ? "" : `-X ${method} `}${location.origin}${filled}`, `-H 'Authorization: Bearer '"$HOURBELL_API_KEY"`];
  if (keyed) lines.push(`-H 'Idempotency-Key: '"$(uuidgen)"`);
  if (example !== undefined) lines.push(`-H 'Content-Type: application/json'`, `-d '${JSON.stringify(example).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

function Try({ method, path, operation, example, keyed }: { method: string; path: string; operation: Described; example: unknown; keyed: boolean }) {
  const can = useCan();
  const [values, setValues] = useState<Record<string, string>>({});
  const [body, setBody] = useState(example === undefined ? "" : pretty(example));
  const [answer, setAnswer] = useState<string | null>(null);
  const [asking, setAsking] = useState(false);
  const inputs = operation.parameters.filter((parameter) => parameter.in !== "header");
  if (!can(operation.operationId) || path.startsWith("/internal") || path.endsWith("/events")) return null;
  async function send() {
    setAsking(false);
    let target = path;
    const query: Record<string, string> = {};
    for (const parameter of inputs) {
      const value = values[parameter.name] ?? "";
      if (parameter.in === "path") target = target.replace(`{${parameter.name}}`, encodeURIComponent(value));
      else if (value) query[parameter.name] = value;
    }
    try {
      const { value, status } = await call<unknown>(method, target, { query, exact: true, ...(keyed ? { key: newKey() } : {}), ...(body.trim() && method !== "GET" ? { body: exactJson(body) } : {}) });
      setAnswer(`${status}\n${pretty(value)}`);
    } catch (error) {
      const problem = error as ApiProblem;
      setAnswer(problem.status === undefined ? String(error) : `${problem.status} ${problem.code}\n${problem.detail}`);
    }
  }
  return (
    <details>
      <summary>Try it with your key</summary>
      <div className={s.stack} style={{ marginTop: 12 }}>
        <div className={s.cols}>
          {inputs.map((parameter) => (
            <Field key={parameter.name} label={parameter.name}>
              {(props) => <input {...props} className={parts.input} autoComplete="off" placeholder={parameter.example} value={values[parameter.name] ?? ""} onChange={(event) => setValues({ ...values, [parameter.name]: event.target.value })} />}
            </Field>
          ))}
        </div>
        {example !== undefined && <Field label="Body">{(props) => <textarea {...props} className={parts.input} rows={8} spellCheck={false} value={body} onChange={(event) => setBody(event.target.value)} />}</Field>}
        <div>
          <Button onClick={() => (method === "GET" ? void send() : setAsking(true))}>{method === "GET" ? "Send" : "Send…"}</Button>
        </div>
        {answer !== null && <Code label="Response" text={answer} />}
        {asking && (
          <Confirm title={`Send ${method} ${path}?`} verb="Send" danger close={() => setAsking(false)} confirm={() => void send()}>
            <p>This changes something on this server: {operation.summary.toLowerCase()}.</p>
          </Confirm>
        )}
      </div>
    </details>
  );
}
