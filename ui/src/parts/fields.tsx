// Parts of forms and filters.
import { X } from "lucide-react";
import { useId, type ReactNode } from "react";
import { Link } from "wouter";

import { styles as s } from "./basics";

export interface FieldProps {
  id: string;
  "aria-invalid"?: boolean;
  "aria-describedby"?: string;
}

/** A label, a control, a hint and an error that belong together. */
export function Field({ label, hint, error, path, children }: { label: string; hint?: ReactNode; error?: string | null; path?: string; children: (props: FieldProps) => ReactNode }) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");
  return (
    <div className={s.field} data-path={path}>
      <label htmlFor={id}>{label}</label>
      {children({ id, "aria-invalid": error ? true : undefined, "aria-describedby": described || undefined })}
      {hint && (
        <span className={s.hint} id={`${id}-hint`}>
          {hint}
        </span>
      )}
      {error && (
        <span className={s.fieldError} id={`${id}-error`}>
          {error}
        </span>
      )}
    </div>
  );
}

export function Select({ value, onChange, options, label, ...rest }: { value: string; onChange: (value: string) => void; options: (string | [string, string])[]; label?: string } & Partial<FieldProps>) {
  return (
    <select {...rest} className={`${s.input} ${s.select}`} aria-label={label} value={value} onChange={(event) => onChange(event.target.value)}>
      {options.map((option) => {
        const [key, text] = typeof option === "string" ? [option, option] : option;
        return (
          <option key={key} value={key}>
            {text}
          </option>
        );
      })}
    </select>
  );
}

export function Chips({ chips, clear }: { chips: { name: string; value: string; remove: () => void }[]; clear?: () => void }) {
  if (!chips.length) return null;
  return (
    <ul className={s.chips} aria-label="Filters">
      {chips.map((chip) => (
        <li key={chip.name + chip.value} className={s.chip}>
          <span>
            <span className={s.muted}>{chip.name}</span> {chip.value}
          </span>
          <button type="button" aria-label={`Remove the filter ${chip.name} ${chip.value}`} onClick={chip.remove}>
            <X size={14} aria-hidden />
          </button>
        </li>
      ))}
      {clear && chips.length > 1 && (
        <li>
          <button type="button" className={s.linkish} onClick={clear}>
            Clear all
          </button>
        </li>
      )}
    </ul>
  );
}

/** A few choices in a row, as links: the current one is in the address. */
export function Segments({ label, items, current }: { label: string; items: { id: string; text: string; href: string }[]; current: string }) {
  return (
    <nav className={s.segments} aria-label={label}>
      {items.map((item) => (
        <Link key={item.id} href={item.href} aria-current={item.id === current ? "true" : undefined}>
          {item.text}
        </Link>
      ))}
    </nav>
  );
}

export function Tabs({ label, items, current }: { label: string; items: { id: string; text: string; href: string }[]; current: string }) {
  return (
    <nav className={s.tabs} aria-label={label}>
      {items.map((item) => (
        <Link key={item.id} href={item.href} aria-current={item.id === current ? "page" : undefined}>
          {item.text}
        </Link>
      ))}
    </nav>
  );
}
