// Navigation, top bar and banners that apply to every page.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Activity, CalendarClock, Grid3x3, LayoutDashboard, Moon, MoreHorizontal, Server, Skull, Sun, Timer, Users, Layers, ListChecks, KeyRound, BookOpen, Settings as SettingsIcon } from "lucide-react";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";

import { call, clockOffset, now, type ApiProblem } from "../api/client";
import { useApi, useCan, useMe, useTick } from "../api/hooks";
import type { Leader, Overview } from "../api/types";
import { useShortcuts } from "../lib/keys";
import { useStream } from "../lib/live";
import { change, isDark, useSettings } from "../lib/settings";
import { localZone, rough, timeOfDay, zoneFor, zoneName } from "../lib/time";
import { counted } from "../lib/words";
import { Dialog, Menu, toast } from "../parts/overlays";
import { Search } from "./search";
import s from "./shell.module.css";

const PAGES = [
  { href: "/", text: "Overview", icon: LayoutDashboard, phone: true },
  { href: "/jobs", text: "Jobs", icon: CalendarClock, phone: true },
  { href: "/executions", text: "Executions", icon: Activity, phone: true },
  { href: "/tasks", text: "Tasks", icon: Timer, phone: false },
  { href: "/dead-letters", text: "Dead letters", icon: Skull, phone: true },
  { href: "/forecast", text: "Forecast", icon: Grid3x3, phone: false },
  { href: "/tenants", text: "Tenants", icon: Users, phone: false },
  { href: "/queues", text: "Queues", icon: Layers, phone: false },
  { href: "/fleet", text: "Fleet", icon: Server, phone: false },
];
const LOWER = [
  { href: "/operations", text: "Operations", icon: ListChecks },
  { href: "/keys", text: "Keys", icon: KeyRound },
  { href: "/reference", text: "API", icon: BookOpen },
  { href: "/settings", text: "Settings", icon: SettingsIcon },
];

export function Logo({ size = 24 }: { size?: number }) {
  return <img src="/icon.svg" width={size} height={size} alt="" />;
}

export function Shell({ lost, children }: { lost: ApiProblem | null; children: ReactNode }) {
  const [path, navigate] = useLocation();
  const [help, setHelp] = useState(false);
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const { clock, live } = useSettings();
  const can = useCan();

  useEffect(() => {
    if (first.current) {
      first.current = false;
      return;
    }
    scrollTo(0, 0);
    // The page may still be loading: its heading gets the focus when it appears, unless something else has it by then.
    main.current?.focus({ preventScroll: true });
    let tries = 0;
    const timer = setInterval(() => {
      // While a page loads, the previous one is still there, hidden.
      const headings = Array.from(main.current?.querySelectorAll<HTMLElement>("h1") ?? []);
      const heading = headings.find((each) => each.offsetParent !== null);
      if (heading && document.activeElement === main.current) heading.focus({ preventScroll: true });
      if (heading || document.activeElement !== main.current || ++tries > 300) clearInterval(timer);
    }, 30);
    return () => clearInterval(timer);
  }, [path]);

  const zones = ["utc", "local", "job"] as const;
  useShortcuts({
    "/": () => document.getElementById("search")?.focus(),
    "?": () => setHelp(true),
    "g o": () => navigate("/"),
    "g j": () => navigate("/jobs"),
    "g e": () => navigate("/executions"),
    "g d": () => navigate("/dead-letters"),
    "g f": () => navigate("/forecast"),
    "g t": () => navigate("/tenants"),
    "g k": () => navigate("/tasks"),
    "g q": () => navigate("/queues"),
    "g w": () => navigate("/fleet"),
    n: () => can("create_job") && navigate("/jobs/new"),
    z: () => change({ clock: zones[(zones.indexOf(clock) + 1) % zones.length] }),
    l: () => change({ live: !live }),
  });

  return (
    <>
      <a className={s.skip} href="#main">
        Skip to content
      </a>
      <div className={s.frame}>
        <header className={s.top}>
          <Link href="/" className={s.brand}>
            <Logo /> <span>Hourbell</span>
          </Link>
          <div className={s.bar}>
            <Search />
            <div className={s.tools}>
              <ClockMenu />
              <LiveSwitch />
              <ThemeSwitch />
              <KeyMenu help={() => setHelp(true)} />
            </div>
          </div>
        </header>
        <Navigation path={path} />
        <main id="main" className={s.main} ref={main} tabIndex={-1}>
          <div className={s.content}>
            <Alarm lost={lost} />
            <OpenServer />
            {children}
          </div>
        </main>
      </div>
      {help && <Help close={() => setHelp(false)} />}
    </>
  );
}

function Navigation({ path }: { path: string }) {
  const me = useMe();
  const dead = useApi<Overview>("/api/v1/overview", { window: "1h" }).data?.dead_today;
  const current = (href: string) => (href === "/" ? path === "/" : path === href || path.startsWith(`${href}/`));
  return (
    <nav className={s.nav} aria-label="Pages">
      {PAGES.filter(({ href }) => href !== "/tasks" || !me?.tenant_id).map(({ href, text, icon: Icon, phone }) => (
        <Link key={href} href={href} aria-current={current(href) ? "page" : undefined} data-phone={phone ? "yes" : "no"}>
          <Icon size={18} strokeWidth={1.75} aria-hidden />
          <span>{text}</span>
          {href === "/dead-letters" && !!dead?.count && (
            <span className={s.count} title="died today (UTC)">
              {dead.count > 999 ? "999+" : counted(dead.count, dead.at_least)}
            </span>
          )}
        </Link>
      ))}
      <div className={s.lower}>
        {LOWER.filter(({ href }) => href !== "/keys" || me?.operations.includes("list_keys")).map(({ href, text, icon: Icon }) => (
          <Link key={href} href={href} aria-current={current(href) ? "page" : undefined} data-phone="no">
            <Icon size={18} strokeWidth={1.75} aria-hidden />
            <span>{text}</span>
          </Link>
        ))}
      </div>
      <Link href="/more" aria-current={current("/more") ? "page" : undefined}>
        <MoreHorizontal size={18} strokeWidth={1.75} aria-hidden />
        <span>More</span>
      </Link>
      <p className={s.foot}>Version {me?.version}</p>
    </nav>
  );
}

function ClockMenu() {
  const { clock } = useSettings();
  useTick(1000);
  const zone = zoneFor(clock);
  const name = clock === "job" ? "Job’s zone" : zoneName(now(), zone);
  return (
    <Menu
      label="Clock for all times"
      className={`${s.tool} ${s.clock}`}
      items={[
        { label: "UTC", act: () => change({ clock: "utc" }) },
        { label: `Local: ${localZone}`, act: () => change({ clock: "local" }) },
        { label: "Each job in its own zone", act: () => change({ clock: "job" }) },
      ]}
    >
      <span>
        <span className="visually-hidden">Clock: </span>
        {clock === "job" ? name : `${timeOfDay(now(), zone)} ${name}`}
      </span>
    </Menu>
  );
}

const STREAM_WORDS = { open: "Live", connecting: "Connecting", polling: "Polling", paused: "Paused" };
const STREAM_TITLES = {
  open: "Changes appear automatically. Click, or press l, to pause.",
  connecting: "Connecting to the change stream.",
  polling: "No stream: the page is refreshed every 10 seconds.",
  paused: "Nothing is refreshed. Click, or press l, to continue.",
};

function LiveSwitch() {
  const stream = useStream();
  const { live } = useSettings();
  const state = live ? stream : "paused";
  return (
    <button type="button" className={s.tool} aria-pressed={live} title={STREAM_TITLES[state]} onClick={() => change({ live: !live })}>
      <span className={s.dot} data-state={state} />
      <span className={s.wide}>{STREAM_WORDS[state]}</span>
    </button>
  );
}

function ThemeSwitch() {
  useSettings();
  const dark = isDark();
  return (
    <button type="button" className={s.tool} aria-label={dark ? "Use the light theme" : "Use the dark theme"} title={dark ? "Light theme" : "Dark theme"} onClick={() => change({ theme: dark ? "light" : "dark" })}>
      {dark ? <Sun size={18} aria-hidden /> : <Moon size={18} aria-hidden />}
    </button>
  );
}

function KeyMenu({ help }: { help: () => void }) {
  const me = useMe();
  const client = useQueryClient();
  const [, navigate] = useLocation();
  async function signOut() {
    try {
      await call("DELETE", "/api/v1/session");
    } catch (error) {
      // A session that has already ended is signed out.
      if ((error as ApiProblem).status !== 401) return toast(`You are still signed in. ${(error as ApiProblem).detail}`);
    }
    await client.resetQueries();
  }
  if (!me) return null;
  const whose = me.tenant_id ? `${me.role}, ${me.tenant_id}` : me.role;
  return (
    <Menu
      label={`${me.name}, ${whose}`}
      className={s.tool}
      items={[
        { label: "Settings", act: () => navigate("/settings") },
        { label: "Keyboard shortcuts", act: help },
        { label: "API keys", act: () => navigate("/keys"), hidden: !me.operations.includes("list_keys") },
        { label: "Sign out", act: () => void signOut(), hidden: me.authenticated_by !== "session" },
      ]}
    >
      <KeyRound size={16} aria-hidden />
      <span className={s.who}>
        {me.authenticated_by === "nothing" ? "Open" : me.name} <small>({whose})</small>
      </span>
    </Menu>
  );
}

/** What makes every page stale or incomplete. */
function Alarm({ lost }: { lost: ApiProblem | null }) {
  useTick(1000);
  const leader = useQuery<{ leader?: Leader | null }>({ queryKey: ["live"], enabled: false }).data?.leader;
  if (lost) {
    return (
      <div className={s.alarm} role="alert">
        {lost.title}. {lost.detail} What you see may be out of date.
      </div>
    );
  }
  if (leader && !leader.present) {
    return (
      <div className={s.alarm} role="alert">
        No scheduler has been leading{leader.expires_at ? ` for ${rough(now() - Date.parse(leader.expires_at))}` : ""}. Workers finish what they have and this page works, but no further runs are planned.
      </div>
    );
  }
  if (Math.abs(clockOffset()) > 2000) {
    return <div className={s.open}>The clock of this computer is {rough(Math.abs(clockOffset()))} {clockOffset() > 0 ? "behind" : "ahead of"} the server. Times shown here are the server’s.</div>;
  }
  return null;
}

function OpenServer() {
  const me = useMe();
  const [path] = useLocation();
  const plain = location.protocol === "http:" && !/^(localhost|127\.|\[::1\])/.test(location.hostname);
  if (me?.authenticated_by === "nothing" && path === "/") {
    return (
      <div className={s.open}>
        <span>No keys exist yet, so every user of this computer can do everything.</span>
        <Link href="/keys">Create the first key</Link>
      </div>
    );
  }
  return plain && path === "/" ? <div className={s.open}>This connection is not encrypted. Use HTTPS for anything but testing.</div> : null;
}

const SHORTCUTS: [string, string][] = [
  ["/", "Search"],
  ["g o", "Overview"],
  ["g j", "Jobs"],
  ["g e", "Executions"],
  ["g d", "Dead letters"],
  ["g f", "Forecast"],
  ["g t", "Tenants"],
  ["g k", "Tasks"],
  ["g q", "Queues"],
  ["g w", "Fleet"],
  ["n", "New job"],
  ["j k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["r", "Run now, or replay (asks first)"],
  ["p", "Pause or resume (asks first)"],
  ["e", "Edit the job"],
  ["z", "Next clock: UTC, local, each job’s own"],
  ["l", "Turn live updates on or off"],
  ["Esc", "Close"],
];

function Help({ close }: { close: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" close={close}>
      <dl className={s.keys}>
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys} className={s.keyRow}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p>Single letters are ignored while you type. You can turn them off in the settings.</p>
    </Dialog>
  );
}
