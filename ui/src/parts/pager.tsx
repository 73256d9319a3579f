// Pages of a list, by the server's tokens.
import { Link, useLocation } from "wouter";

import { changed, useParams } from "../lib/url";
import { counted, plural } from "../lib/words";
import { ButtonLink, Time } from "./basics";
import { TableFooter } from "./table";

interface Props {
  page: { items: unknown[]; next_page_token: string | null };
  size: number;
  noun: string;
  back?: string; // the time of the last row
  many?: string;
  total?: { count: number; at_least: boolean }; // of all that match
}

/** How many rows there are, how far back they go, and links to older ones. */
export function Pager({ page, size, noun, many, back, total }: Props) {
  const [params] = useParams();
  const [path] = useLocation();
  const next = page.next_page_token;
  const first = !params.get("after");
  const short = next !== null && page.items.length < size;
  const to = (after: string | null) => changed(path, new URLSearchParams(params), { after });
  return (
    <TableFooter>
      <span>
        {plural(page.items.length, noun, many)}
        {total && total.count > page.items.length ? ` of ${counted(total.count, total.at_least)}` : ""}
        {short ? " found among the newest 10,000 that were examined" : next ? " on this page" : first ? "" : " on the last page"}
        {next && back ? (
          <>
            , back to <Time at={back} mode="absolute" seconds={false} />
          </>
        ) : null}
        .
      </span>
      <span>
        {!first && <Link href={to(null)}>Newest</Link>}{" "}
        {next && (
          <ButtonLink small href={to(next)}>
            {short ? "Search further" : "Older"}
          </ButtonLink>
        )}
      </span>
    </TableFooter>
  );
}
