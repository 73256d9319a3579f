import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const here = new URL(".", import.meta.url).pathname;

function sources(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? sources(join(folder, entry.name)) : /\.tsx?$/.test(entry.name) && !entry.name.includes(".test.") ? [join(folder, entry.name)] : []));
}

test("nothing turns text into HTML or code", () => {
  const forbidden = /dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc/i;
  expect(sources(here).filter((file) => forbidden.test(readFileSync(file, "utf8")))).toEqual([]);
});
