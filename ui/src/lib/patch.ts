// What a change of the form sends: a merge patch. Given fields change, null resets a field.

type Fields = Record<string, unknown>;

const FIXED = ["type", "tenant_id", "unique_key"]; // cannot change
const BY_NAME = ["labels", "headers"];

/** The patch that turns one document of a job into another. `body` and `payload` are replaced as a whole. */
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
