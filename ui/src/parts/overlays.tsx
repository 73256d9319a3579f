// Dialogs, menus and short messages.
import { MoreHorizontal } from "lucide-react";
import { useEffect, useId, useLayoutEffect, useRef, useState, useSyncExternalStore, type FormEvent, type ReactNode } from "react";
import { Link } from "wouter";

import type { ApiProblem } from "../api/client";
import { Button, Failure, styles as s } from "./basics";
import { Field } from "./fields";

/** A modal dialog. The native element traps the focus and restores it. */
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ReactNode }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  // The cleanup runs before the element is removed, after which it could not restore the focus.
  useLayoutEffect(() => {
    const dialog = element.current;
    if (dialog && !dialog.open) dialog.showModal();
    dialog?.querySelector<HTMLElement>("[data-focus]")?.focus();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={element} className={s.dialog} aria-labelledby={id} onClose={close} onCancel={close}>
      <div className={s.dialogBody}>
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  verb: string;
  danger?: boolean;
  typed?: string; // what must be typed first
  waiting?: boolean; // the effect is not known yet
  busy?: boolean;
  problem?: ApiProblem | null;
  close: () => void;
  confirm: () => void;
  children?: ReactNode;
}

/** Asks for confirmation. For a red button, focus starts on Cancel, and Enter never triggers it. */
export function Confirm({ title, verb, danger, typed, waiting, busy, problem, close, confirm, children }: ConfirmProps) {
  const [text, setText] = useState("");
  const ready = !waiting && (!typed || text.trim() === typed.trim());
  function submit(event: FormEvent) {
    event.preventDefault();
    if (!danger && ready && !busy) confirm();
  }
  return (
    <Dialog title={title} close={close}>
      <form onSubmit={submit} className={s.flush}>
        {children}
        {typed && (
          <Field label={`Type ${typed} to confirm`}>
            {(props) => <input {...props} className={s.input} autoComplete="off" value={text} onChange={(event) => setText(event.target.value)} />}
          </Field>
        )}
        {problem && <Failure problem={problem} />}
        <div className={s.dialogActions}>
          <Button onClick={close} data-focus={danger ? "" : undefined}>
            Cancel
          </Button>
          <Button kind={danger ? "danger" : "primary"} type={danger ? "button" : "submit"} onClick={danger ? confirm : undefined} disabled={!ready || busy}>
            {busy ? "Working …" : verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

export interface MenuItem {
  label: string;
  href?: string;
  act?: () => void;
  red?: boolean;
  hidden?: boolean;
}

/** A menu behind a button; arrow keys move, Escape closes. */
export function Menu({ label, items, children, className = s.button }: { label: string; items: (MenuItem | null)[]; children?: ReactNode; className?: string }) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const menu = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(false);
  const shown = items.filter((item) => item === null || !item.hidden);

  useEffect(() => {
    const element = menu.current;
    if (!element) return;
    function toggled(event: Event) {
      const opened = (event as ToggleEvent).newState === "open";
      setOpen(opened);
      if (opened) element?.querySelector<HTMLElement>("a, button")?.focus();
    }
    element.addEventListener("toggle", toggled);
    return () => element.removeEventListener("toggle", toggled);
  }, []);

  function show() {
    const box = button.current?.getBoundingClientRect();
    const element = menu.current;
    if (!box || !element) return;
    element.togglePopover();
    const size = element.getBoundingClientRect();
    const below = box.bottom + 4 + size.height < innerHeight;
    element.style.top = `${below ? box.bottom + 4 : Math.max(8, box.top - size.height - 4)}px`;
    element.style.left = `${Math.max(8, Math.min(box.right - size.width, innerWidth - size.width - 8))}px`;
  }

  function move(event: React.KeyboardEvent) {
    const all = Array.from(menu.current?.querySelectorAll<HTMLElement>("a, button") ?? []);
    const at = all.indexOf(document.activeElement as HTMLElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    all[(next + all.length) % all.length]?.focus();
  }

  function hide() {
    menu.current?.hidePopover();
    button.current?.focus();
  }

  if (!shown.some((item) => item !== null)) return null;
  return (
    <>
      <button ref={button} type="button" className={children ? className : `${s.button} ${s.icon} ${s.quiet} ${s.small}`} aria-haspopup="menu" aria-expanded={open} aria-controls={id} aria-label={children ? undefined : label} title={label} onClick={show}>
        {children ?? <MoreHorizontal size={16} aria-hidden />}
      </button>
      <div ref={menu} id={id} popover="auto" role="menu" aria-label={label} className={s.menu} onKeyDown={move}>
        {shown.map((item, index) =>
          item === null ? (
            <hr key={index} />
          ) : item.href ? (
            <Link key={index} role="menuitem" href={item.href} onClick={hide}>
              {item.label}
            </Link>
          ) : (
            <button
              key={index}
              type="button"
              role="menuitem"
              className={item.red ? s.red : undefined}
              onClick={() => {
                hide();
                item.act?.();
              }}
            >
              {item.label}
            </button>
          ),
        )}
      </div>
    </>
  );
}

interface Message {
  id: number;
  text: string;
  undo?: () => void;
  href?: string;
}

let messages: Message[] = [];
let count = 0;
const listeners = new Set<() => void>();

function set(next: Message[]): void {
  messages = next;
  for (const listener of listeners) listener();
}

/** Show a message for a while. */
export function toast(text: string, options: { undo?: () => void; href?: string } = {}): void {
  const id = ++count;
  set([...messages, { id, text, ...options }]);
  setTimeout(() => set(messages.filter((message) => message.id !== id)), options.undo ? 10_000 : 5000);
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => messages,
  );
  return (
    <div className={s.toasts} role="status">
      {shown.map((message) => (
        <div key={message.id} className={s.toast}>
          <span>{message.text}</span>
          {message.href && <Link href={message.href}>Open</Link>}
          {message.undo && (
            <button
              type="button"
              onClick={() => {
                message.undo?.();
                set(messages.filter((each) => each.id !== message.id));
              }}
            >
              Undo
            </button>
          )}
        </div>
      ))}
    </div>
  );
}
