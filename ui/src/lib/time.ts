// Instants and durations as text. Schedules are not computed here: the server knows the zones.

export type ClockSetting = "utc" | "local" | "job";

export const localZone = new Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

/** The zone in which times are shown. */
export function zoneFor(clock: ClockSetting, jobZone?: string | null): string {
  if (clock === "utc") return "UTC";
  return clock === "local" ? localZone : (jobZone ?? "UTC");
}

const formats = new Map<string, Intl.DateTimeFormat>();

function format(locale: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = locale + JSON.stringify(options);
  let found = formats.get(key);
  if (!found) formats.set(key, (found = new Intl.DateTimeFormat(locale, options)));
  return found;
}

function part(parts: Intl.DateTimeFormatPart[], type: string): string {
  return parts.find((each) => each.type === type)?.value ?? "";
}

/** CET, EST, UTC; or GMT+5:30 where there is no abbreviation. */
export function zoneName(at: number, zone: string): string {
  let name = "";
  for (const locale of ["en-GB", "en-US", "en-AU"]) {
    name = part(format(locale, { timeZone: zone, timeZoneName: "short" }).formatToParts(at), "timeZoneName");
    if (!/^GMT[+-]/.test(name)) return name;
  }
  return name;
}

export interface Parts {
  weekday: string;
  day: string;
  month: string;
  year: string;
  hour: string;
  minute: string;
  second: string;
}

export function partsOf(at: number, zone: string): Parts {
  const parts = format("en-GB", {
    timeZone: zone,
    weekday: "short",
    day: "numeric",
    month: "short",
    year: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hourCycle: "h23",
  }).formatToParts(at);
  const read = (type: string) => part(parts, type);
  return {
    weekday: read("weekday"),
    day: read("day"),
    month: read("month").slice(0, 3),
    year: read("year"),
    hour: read("hour"),
    minute: read("minute"),
    second: read("second"),
  };
}

/** Whether this browser knows a zone: its tzdata may be older than the server's. */
export function knownZone(zone: string): boolean {
  try {
    format("en-GB", { timeZone: zone });
    return true;
  } catch {
    return false;
  }
}

/** 14:03:12 */
export function timeOfDay(at: number, zone: string, seconds = true): string {
  const parts = partsOf(at, zone);
  return seconds ? `${parts.hour}:${parts.minute}:${parts.second}` : `${parts.hour}:${parts.minute}`;
}

/** Mon 16 Nov, with the year if it is not the current one */
export function dayOf(at: number, zone: string, now: number): string {
  const parts = partsOf(at, zone);
  const year = parts.year === partsOf(now, zone).year ? "" : ` ${parts.year}`;
  return `${parts.weekday} ${parts.day} ${parts.month}${year}`;
}

/** Mon 16 Nov 14:03:12 CET */
export function absolute(at: number, zone: string, now: number, seconds = true): string {
  return `${dayOf(at, zone, now)} ${timeOfDay(at, zone, seconds)} ${zoneName(at, zone)}`;
}

/** 14:03:12 if it is today, else Mon 16 Nov 14:03:12; without the zone, for tables that name it once */
export function short(at: number, zone: string, now: number, seconds = true): string {
  const day = dayOf(at, zone, now);
  const time = timeOfDay(at, zone, seconds);
  return day === dayOf(now, zone, now) ? time : `${day.replace(/^\w+ /, "")} ${time}`;
}

/** in 11 h, 3 min ago, now */
export function relative(at: number, now: number): string {
  const ms = at - now;
  const text = rough(Math.abs(ms));
  if (text === "0 s") return "now";
  return ms > 0 ? `in ${text}` : `${text} ago`;
}

/** One unit, or two where the second matters: 12 s, 3 min, 11 h, 2 d */
export function rough(ms: number): string {
  const seconds = Math.round(ms / 1000);
  if (seconds < 100) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours < 48) return `${hours} h`;
  const days = Math.round(hours / 24);
  return days < 730 ? `${group(days)} d` : `${Math.round(days / 365)} y`;
}

/** 4 ms, 1.2 s, 30.0 s, 4 min 10 s, 2 h 5 min, 3 d 4 h */
export function duration(ms: number): string {
  if (ms < 1) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return hours ? `${group(days)} d ${hours} h` : `${group(days)} d`;
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
}

const grouped = new Intl.NumberFormat("en-GB");

/** +3 ms, −120 ms, 0 ms */
export function signed(ms: number): string {
  const text = duration(Math.abs(ms));
  return text === "0 ms" ? text : `${ms > 0 ? "+" : "−"}${text}`;
}

/** 12,400 */
export function group(number: number): string {
  return grouped.format(number);
}

/** The start of an instant's day, in UTC or local time. */
export function startOfDay(at: number, zone: string): number {
  if (zone === "UTC") return Math.floor(at / 86_400_000) * 86_400_000;
  const parts = partsOf(at, zone);
  const elapsed = (Number(parts.hour) * 3600 + Number(parts.minute) * 60 + Number(parts.second)) * 1000 + (at % 1000);
  // On the day of a clock change this is up to an hour off; a second step corrects it.
  const first = at - elapsed;
  const again = partsOf(first, zone);
  const hour = Number(again.hour);
  if (hour === 0) return first;
  return hour > 12 ? first + (24 - hour) * 3_600_000 : first - hour * 3_600_000;
}
