// The merge patch that an edited form sends: given fields change, null resets a field.

type Fields = Record<string, unknown>;

const FIXED = ["type", "tenant_id", "unique_key"]; // cannot change
const BY_NAME = ["labels", "headers"];

/** The patch that turns one job document into another. `body` and `payload` are replaced as a whole. */
export function patchOf(before: Fields, after: Fields): Fields {
  const patch = changes(before, after);
  for (const name of FIXED) delete patch[name];
  for (const name of ["schedule", "action", "retry_policy"]) {
    const [from, to] = [before[name] as Fields | undefined, after[name] as Fields | undefined];
    // Another kind replaces the old one with all its fields.
    if (from && to && name in patch && kindOf(from) === kindOf(to)) patch[name] = changes(from, to);
  }
  return patch;
}

function kindOf(part: Fields): string {
  return String(part.type ?? part.backoff ?? ["cron", "every_seconds", "at"].find((name) => name in part));
}

function changes(before: Fields, after: Fields): Fields {
  const patch: Fields = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (JSON.stringify(before[name]) === JSON.stringify(after[name])) continue;
    if (BY_NAME.includes(name)) patch[name] = changes((before[name] ?? {}) as Fields, (after[name] ?? {}) as Fields);
    else patch[name] = name in after ? after[name] : null;
  }
  return patch;
}

/** The fields in which two documents differ. */
export function differences(from: unknown, to: unknown, path = ""): [string, unknown, unknown][] {
  const isObject = (value: unknown): value is Record<string, unknown> => value !== null && typeof value === "object" && !Array.isArray(value);
  // An added or removed object is also shown field by field; null counts as no value.
  if ((isObject(from) && isObject(to ?? {})) || (isObject(to) && isObject(from ?? {}))) {
    const [before, after] = [(from ?? {}) as Record<string, unknown>, (to ?? {}) as Record<string, unknown>];
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name) => differences(before[name], after[name], path ? `${path}.${name}` : name));
  }
  return JSON.stringify(from ?? null) === JSON.stringify(to ?? null) ? [] : [[path, from ?? undefined, to ?? undefined]];
}
