import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

const css = readFileSync(new URL("./tokens.css", import.meta.url), "utf8");

function tokensOf(block: RegExp): Record<string, string> {
  const text = block.exec(css)?.[1] ?? "";
  return Object.fromEntries([...text.matchAll(/(--[\w-]+):\s*(#[0-9a-f]{6})/g)].map(([, name, value]) => [name ?? "", value ?? ""]));
}

const light = tokensOf(/:root \{([^}]*)\}/);
const dark = tokensOf(/:root\[data-theme="dark"\] \{([^}]*)\}/);

function luminance(hex: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const part = parseInt(hex.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: string, other: string): number {
  const [low = 0, high = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const STATUSES = ["scheduled", "queued", "running", "awaiting", "retrying", "succeeded", "failed", "dead", "cancelled", "skipped", "superseded", "paused", "warning"];
const BACKGROUNDS = ["--bg", "--surface", "--raised", "--hover"];
const TEXTS: [string, string[]][] = [
  ["--text", [...BACKGROUNDS, "--accent-soft"]],
  ["--muted", [...BACKGROUNDS, "--accent-soft"]],
  ["--accent", [...BACKGROUNDS, "--accent-soft"]],
  ["--failed", ["--bg", "--surface", "--raised"]],
  ["--on-accent", ["--accent"]],
  ["--on-danger", ["--danger"]],
  ["--warning", ["--bg"]],
  ["--succeeded", ["--bg"]],
];
const MARKS = ["succeeded", "dead", "failed", "skipped", "cancelled", "running", "retrying", "late", "line"];

for (const [theme, tokens] of [
  ["light", light],
  ["dark", dark],
] as const) {
  test(`every text of the ${theme} theme has a contrast of 4.5 with its background`, () => {
    const pairs = [...TEXTS.flatMap(([text, on]) => on.map((each): [string, string] => [text, each])), ...STATUSES.map((each): [string, string] => [`--${each}`, `--${each}-fill`])];
    const low = pairs.filter(([text, on]) => contrast(tokens[text] ?? "#000000", tokens[on] ?? "#000000") < 4.5).map(([text, on]) => `${text} on ${on}: ${contrast(tokens[text] ?? "#000000", tokens[on] ?? "#000000").toFixed(2)}`);
    expect(low).toEqual([]);
  });

  test(`every mark and every border of an input of the ${theme} theme has a contrast of 3`, () => {
    const names = [...MARKS.map((each) => `--mark-${each}`), "--input-line"];
    const low = names.filter((name) => contrast(tokens[name] ?? "#000000", tokens["--bg"] ?? "#000000") < 3);
    expect(low).toEqual([]);
  });
}

test("both themes have the same colours", () => {
  expect(Object.keys(dark).sort()).toEqual(Object.keys(light).sort());
});
