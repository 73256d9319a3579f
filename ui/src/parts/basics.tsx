// Small parts that every page uses.
import { AlertTriangle, Check, Copy as CopyIcon, RefreshCw } from "lucide-react";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { Link } from "wouter";

import { ApiProblem, now } from "../api/client";
import { useCan, useMe, useTick, type Read } from "../api/hooks";
import { useSettings } from "../lib/settings";
import { absolute, knownZone, localZone, relative, short, timeOfDay, zoneFor } from "../lib/time";
import s from "./parts.module.css";

export function classes(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

interface ButtonProps extends React.ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: "primary" | "danger" | "quiet";
  small?: boolean;
  icon?: boolean;
}

export function Button({ kind, small, icon, className, type = "button", ...rest }: ButtonProps) {
  return <button type={type} className={classes(s.button, kind && s[kind], small && s.small, icon && s.icon, className)} {...rest} />;
}

export function ButtonLink({ href, kind, small, children }: { href: string; kind?: "primary" | "quiet"; small?: boolean; children: ReactNode }) {
  return (
    <Link href={href} className={classes(s.button, kind && s[kind], small && s.small)}>
      {children}
    </Link>
  );
}

/** Shows its content only if the caller may do this. */
export function Can({ op, children }: { op: string; children: ReactNode }) {
  return useCan()(op) ? <>{children}</> : null;
}

export function Panel({ title, actions, children, flush, level = 2, label }: { title?: ReactNode; actions?: ReactNode; children: ReactNode; flush?: boolean; level?: 2 | 3; label?: string }) {
  const Heading = level === 2 ? "h2" : "h3";
  return (
    <section className={s.panel} aria-label={label}>
      {title !== undefined && (
        <div className={s.panelHead}>
          <Heading>{title}</Heading>
          {actions && <div>{actions}</div>}
        </div>
      )}
      <div className={flush ? s.flush : s.panelBody}>{children}</div>
    </section>
  );
}

/** The heading of a page. Focus goes to it after a navigation. */
export function PageHead({ title, beside, actions }: { title: string; beside?: ReactNode; actions?: ReactNode }) {
  useEffect(() => {
    document.title = `${title} · Hourbell`;
  }, [title]);
  return (
    <div className={s.head}>
      <h1 tabIndex={-1}>{title}</h1>
      {beside}
      {actions && <div className={s.headActions}>{actions}</div>}
    </div>
  );
}

export function Lead({ children }: { children: ReactNode }) {
  return <p className={s.lead}>{children}</p>;
}

export function Note({ children }: { children: ReactNode }) {
  return (
    <div className={s.note}>
      <AlertTriangle size={16} aria-hidden />
      {children}
    </div>
  );
}

export function Empty({ children, action }: { children: ReactNode; action?: ReactNode }) {
  return (
    <div className={s.empty}>
      <p>{children}</p>
      {action}
    </div>
  );
}

export function Loading({ rows = 6 }: { rows?: number }) {
  return (
    <div className={s.skeleton} role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <i key={index} />
      ))}
    </div>
  );
}

/** What went wrong and what to do about it; counts down if the server gave a time. */
export function Failure({ problem, again, what }: { problem: ApiProblem; again?: () => void; what?: string }) {
  const me = useMe();
  if (problem.status === 403 && what) {
    return (
      <Empty>
        Your key{me ? ` (${me.role})` : ""} may not see this. {problem.detail}
      </Empty>
    );
  }
  if (problem.status === 404 && what) {
    return <Empty action={again && <Button onClick={again}>Try again</Button>}>{problem.code === "unknown_route" ? `This server does not support this yet: ${what}.` : `There is no such ${what}. It may have been removed, or may belong to another tenant.`}</Empty>;
  }
  return (
    <div className={s.failure} role="alert">
      <strong>{problem.title}</strong>
      {problem.errors.length === 0 ? (
        <p>
          <Told text={problem.detail} />
        </p>
      ) : (
        <ul>
          {problem.errors.map((error) => (
            <li key={error.path + error.message}>
              <code>{error.path || "document"}</code> {error.message}
            </li>
          ))}
        </ul>
      )}
      <p className={s.muted}>
        <code>{problem.code}</code>
      </p>
      {again && <Again again={again} seconds={problem.retryAfterSeconds ?? 0} />}
    </div>
  );
}

function Again({ again, seconds }: { again: () => void; seconds: number }) {
  const [left, setLeft] = useState(seconds);
  const latest = useRef(again);
  useEffect(() => {
    latest.current = again;
  });
  useEffect(() => setLeft(seconds), [seconds]);
  useEffect(() => {
    if (left <= 0) return;
    const timer = setTimeout(() => {
      setLeft(left - 1);
      if (left === 1) latest.current();
    }, 1000);
    return () => clearTimeout(timer);
  }, [left]);
  return (
    <Button small onClick={again}>
      <RefreshCw size={14} aria-hidden /> {left > 0 ? `Try again (${left} s)` : "Try again"}
    </Button>
  );
}

/** The states of a read: loading, failed, stale after a failure, loaded. */
export function Reading<T>({ of, what, rows, page, children }: { of: Read<T>; what: string; rows?: number; page?: string; children: (value: T) => ReactNode }) {
  const { clock } = useSettings();
  if (of.data === undefined) {
    // A page that takes its heading from the response needs one until it is loaded.
    return (
      <>
        {page && <PageHead title={page} />}
        {of.error ? <Failure problem={of.error} what={what} again={() => void of.refetch()} /> : <Loading rows={rows} />}
      </>
    );
  }
  return (
    <>
      {of.error && (
        <Note>
          <span>
            {of.error.detail || of.error.title} What you see is as of {timeOfDay(of.dataUpdatedAt, zoneFor(clock))}.
          </span>
          <button type="button" className={s.linkish} onClick={() => void of.refetch()}>
            Try again
          </button>
        </Note>
      )}
      {children(of.data)}
    </>
  );
}

/** An instant: relative if it is near, with the rest in the tooltip. */
export function Time({ at, zone, mode = "auto", seconds = true }: { at: string | null | undefined; zone?: string | null; mode?: "auto" | "absolute" | "relative" | "short"; seconds?: boolean }) {
  const { clock } = useSettings();
  useTick(mode === "absolute" || mode === "short" ? 60_000 : 1000);
  if (!at) return <>–</>;
  const instant = Date.parse(at);
  const shown = zoneFor(clock, zone && knownZone(zone) ? zone : undefined);
  const current = now();
  const full = absolute(instant, shown, current, seconds);
  const near = Math.abs(instant - current) < 86_400_000;
  const text = mode === "short" ? short(instant, shown, current, seconds) : mode === "relative" || (mode === "auto" && near) ? relative(instant, current) : full;
  const title = [absolute(instant, "UTC", current), absolute(instant, localZone, current), zone && knownZone(zone) ? absolute(instant, zone, current) : ""];
  return (
    <time dateTime={new Date(instant).toISOString()} title={[...new Set(title.filter(Boolean))].join("\n")}>
      {text}
    </time>
  );
}

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d))/;

/** A sentence from the server, with its instants shown in the chosen clock. */
export function Told({ text, zone }: { text: string; zone?: string | null }) {
  return text.split(/`([^`]+)`/).map((part, place) =>
    place % 2 ? (
      <code key={place}>{part}</code>
    ) : (
      part.split(INSTANT).map((each, index) => (index % 2 ? <Time key={`${place} ${index}`} at={each} zone={zone} mode="absolute" /> : each))
    ),
  );
}

/** A name in a column of names; one that is too long is cut, and is whole in its title. */
export function Short({ text }: { text: string }) {
  return (
    <span className={s.short} title={text}>
      {text}
    </span>
  );
}

/** Both: in 11 h · Tue 17 Nov 02:30 CET */
export function When({ at, zone }: { at: string | null | undefined; zone?: string | null }) {
  if (!at) return <>–</>;
  return (
    <>
      <Time at={at} zone={zone} mode="relative" /> · <Time at={at} zone={zone} mode="absolute" seconds={false} />
    </>
  );
}

export function copyText(text: string): boolean {
  // navigator.clipboard exists only on HTTPS and localhost.
  if (navigator.clipboard) {
    void navigator.clipboard.writeText(text);
    return true;
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

export function CopyButton({ text, label = "Copy", small = true, icon = false }: { text: string; label?: string; small?: boolean; icon?: boolean }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <Button small={small} icon={icon} kind="quiet" aria-label={icon ? label : undefined} title={label} onClick={() => setDone(copyText(text))}>
      {done ? <Check size={14} aria-hidden /> : <CopyIcon size={14} aria-hidden />}
      {!icon && (done ? "Copied" : label)}
      {icon && done && <span className="visually-hidden">Copied</span>}
    </Button>
  );
}

export function Code({ text, label, copy = true }: { text: string; label: string; copy?: boolean }) {
  const shown = text.length > 262_144 ? `${text.slice(0, 262_144)}\n… cut at 256 KB` : text;
  return (
    <div className={s.codeBox}>
      <pre className={s.code} tabIndex={0} role="region" aria-label={label}>
        {shown}
      </pre>
      {copy && (
        <div className={s.codeCopy}>
          <CopyButton text={text} icon label={`Copy ${label.toLowerCase()}`} />
        </div>
      )}
    </div>
  );
}

export function Meter({ of, part, label }: { of: number; part: number; label: string }) {
  const share = of > 0 ? Math.min(1, part / of) : 0;
  return (
    <div className={s.meter} role="meter" aria-valuemin={0} aria-valuemax={of} aria-valuenow={part} aria-label={label}>
      <i style={{ width: `${share * 100}%` }} />
    </div>
  );
}

export function Muted({ children }: { children: ReactNode }) {
  return <span className={s.muted}>{children}</span>;
}

export { s as styles };
