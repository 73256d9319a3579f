// What executions wait for whose time has come, by the reason.
import type { WaitingFor } from "../api/types";
import { counted } from "../lib/words";
import { Panel } from "./basics";
import s from "./parts.module.css";

export function Backlog({ waiting }: { waiting: WaitingFor[] }) {
  return (
    <ul className={s.backlog}>
      {waiting.map((reason) => (
        <li key={reason.code}>
          <b>{counted(reason.count, reason.at_least)}</b> <span>{reason.words}</span>
        </li>
      ))}
    </ul>
  );
}

export function BacklogPanel({ waiting }: { waiting?: WaitingFor[] }) {
  return waiting?.length ? (
    <Panel title="Waiting for">
      <Backlog waiting={waiting} />
    </Panel>
  ) : null;
}
