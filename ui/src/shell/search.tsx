import { Search as SearchIcon } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useLocation } from "wouter";

import { useApi, useMe, useSettled } from "../api/hooks";
import type { Job, Page } from "../api/types";
import { Status } from "../parts/status";
import s from "./shell.module.css";

/** Finds jobs by a text in their name, task, host or labels, or opens a page by id. */
export function Search() {
  const [text, setText] = useState("");
  const [active, setActive] = useState(0);
  const [open, setOpen] = useState(false);
  const [, navigate] = useLocation();
  const me = useMe();
  const input = useRef<HTMLInputElement>(null);
  const settled = useSettled(text.trim(), 200);
  const isId = /^(job|exe|ops)_[0-9a-z]+$/.test(text.trim());
  const found = useApi<Page<Job>>("/api/v1/jobs", { q: settled, page_size: 8 }, { enabled: settled.length > 0 && !isId && open, keep: true });
  const jobs = settled && !isId ? (found.data?.items ?? []) : [];

  useEffect(() => setActive(0), [settled]);

  function go(href: string) {
    setOpen(false);
    setText("");
    input.current?.blur();
    navigate(href);
  }

  function submit() {
    const typed = text.trim();
    const job = jobs[active];
    if (/^job_/.test(typed) && isId) go(`/jobs/${typed}`);
    else if (/^exe_/.test(typed) && isId) go(`/executions/${typed}`);
    else if (/^ops_/.test(typed) && isId) go(`/operations/${typed}`);
    else if (job && settled === typed) go(`/jobs/${job.job_id}`);
    else if (typed) go(`/jobs?q=${encodeURIComponent(typed)}`);
  }

  function pressed(event: React.KeyboardEvent) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setActive((at) => Math.max(0, Math.min(jobs.length - 1, at + (event.key === "ArrowDown" ? 1 : -1))));
    } else if (event.key === "Enter") {
      event.preventDefault();
      submit();
    } else if (event.key === "Escape") {
      setOpen(false);
      input.current?.blur();
    }
  }

  const shown = open && settled.length > 0;
  return (
    <div className={s.search} role="search">
      <SearchIcon size={16} aria-hidden />
      <input
        id="search"
        ref={input}
        type="text"
        role="combobox"
        aria-label="Search jobs, or an id"
        aria-expanded={shown && jobs.length > 0}
        aria-controls="search-found"
        aria-autocomplete="list"
        aria-activedescendant={shown && jobs[active] ? `search-${active}` : undefined}
        placeholder="Name, task, host, label or id"
        autoComplete="off"
        spellCheck={false}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setOpen(true);
        }}
        onFocus={() => setOpen(true)}
        onBlur={() => setTimeout(() => setOpen(false), 150)}
        onKeyDown={pressed}
      />
      <kbd aria-hidden>/</kbd>
      {shown && (
        <div className={s.found}>
          {isId ? (
            <p>Press Enter to open {text.trim()}.</p>
          ) : found.error ? (
            <p>The search failed. {found.error.detail}</p>
          ) : found.data === undefined ? (
            <p>Searching …</p>
          ) : jobs.length === 0 ? (
            <p>{found.data.next_page_token ? `Nothing found for “${settled}” among the jobs searched so far. Press Enter to search further.` : `No job has “${settled}” in its name, task, host or labels.`}</p>
          ) : null}
          <ul id="search-found" role="listbox" aria-label="Jobs">
            {jobs.map((job, index) => (
              <li key={job.job_id} id={`search-${index}`} role="option" aria-selected={index === active} onMouseDown={(event) => event.preventDefault()} onClick={() => go(`/jobs/${job.job_id}`)}>
                <span>{job.name}</span>
                <Status status={job.status} />
                {me?.tenant_id === null && <span>{job.tenant_id}</span>}
              </li>
            ))}
          </ul>
        </div>
      )}
    </div>
  );
}
