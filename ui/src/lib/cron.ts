// Converts between the choices in the form and a cron rule. The server explains what a rule means.

export type Kind = "daily" | "weekly" | "monthly" | "every" | "once" | "cron";

export interface When {
  kind: Kind;
  time: string; // 02:30
  days: string[]; // of the week, 1 is Monday
  day: string; // of the month
  amount: string;
  unit: "minutes" | "hours" | "days" | "seconds";
  at: string; // a wall time, for once
  cron: string;
}

export const WHEN: When = { kind: "daily", time: "02:30", days: ["1"], day: "1", amount: "5", unit: "minutes", at: "", cron: "30 2 * * *" };

export const UNIT_SECONDS = { seconds: 1, minutes: 60, hours: 3600, days: 86_400 };

/** The cron rule for the choices; null if they do not make one. */
export function cronOf(when: When): string | null {
  const [hour, minute] = when.time.split(":").map(Number);
  const time = `${minute ?? 0} ${hour ?? 0}`;
  switch (when.kind) {
    case "daily":
      return `${time} * * *`;
    case "weekly":
      return `${time} * * ${when.days.length ? [...when.days].sort().join(",") : "1"}`;
    case "monthly":
      return `${time} ${when.day || "1"} * *`;
    case "cron":
      return when.cron;
  }
  return null;
}

/** The choices that produce this rule; any other rule is shown as text. */
export function whenOf(schedule: { cron?: string; every_seconds?: number; at?: string }): When {
  if (schedule.every_seconds !== undefined) {
    const units = ["days", "hours", "minutes", "seconds"] as const;
    const unit = units.find((each) => (schedule.every_seconds ?? 0) % UNIT_SECONDS[each] === 0) ?? "seconds";
    return { ...WHEN, kind: "every", unit, amount: String(schedule.every_seconds / UNIT_SECONDS[unit]) };
  }
  if (schedule.at !== undefined) return { ...WHEN, kind: "once", at: schedule.at.slice(0, 16) };
  const cron = schedule.cron ?? WHEN.cron;
  const found = /^(\d{1,2}) (\d{1,2}) (\*|\d{1,2}) \* (\*|[1-7](?:,[1-7])*)$/.exec(cron.trim());
  const other: When = { ...WHEN, kind: "cron", cron };
  if (!found) return other;
  const [, minute = "", hour = "", day = "", weekday = ""] = found;
  const time = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  const base = { ...WHEN, time, cron };
  if (day === "*" && weekday === "*") return { ...base, kind: "daily" };
  if (day === "*") return { ...base, kind: "weekly", days: weekday.split(",") };
  return weekday === "*" ? { ...base, kind: "monthly", day } : other;
}
