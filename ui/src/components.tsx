// Parts that several pages use.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, isDemo, showDemo } from "./api";
import { useLive } from "./live";

export function Page({ title, about, actions, children }: {
  title: string;
  about?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  const waiting = useLive().approvals.length;
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${title} · Toolfold`;
  }, [title, waiting]);
  return (
    <div class="page">
      <header class="page-head">
        <div>
          <h1 ref={heading} tabIndex={-1}>{title}</h1>
          {about && <p class="muted">{about}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </div>
  );
}

export function Card({ title, aside, children, class: name = "" }: {
  title?: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`card ${name}`}>
      {(title || aside) && (
        <div class="card-head">
          {title && <h2>{title}</h2>}
          {aside && <div class="card-aside">{aside}</div>}
        </div>
      )}
      {children}
    </section>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div class="muted">{children}</div>}
    </div>
  );
}

/** Offers the sample tools and data where there is nothing of the user's own to show yet. */
export function TryDemo() {
  if (isDemo()) return null;
  return <p class="spaced"><button type="button" onClick={() => showDemo(true)}>Try the demo data</button></p>;
}

const TONES: Record<string, string> = {
  core: "accent", pinned: "accent", shown: "good", deferred: "plain", held: "warn", unavailable: "bad", off: "faint",
  up: "good", idle: "plain", starting: "warn", waiting: "warn", resting: "plain", login: "warn", failed: "bad",
  critical: "bad", high: "bad", medium: "warn", low: "plain",
};

export function Badge({ value, tone }: { value: string; tone?: string }) {
  return <span class={`badge ${tone ?? TONES[value] ?? "plain"}`}>{value}</span>;
}

export function Segmented<T extends string>({ label, values, value, onChange, text }: {
  label: string;
  values: readonly T[];
  value: T;
  onChange: (value: T) => void;
  text?: (value: T) => string;
}) {
  return (
    <div class="segmented" role="group" aria-label={label}>
      {values.map((each) => (
        <button key={each} type="button" aria-pressed={each === value} onClick={() => onChange(each)}>
          {text ? text(each) : each}
        </button>
      ))}
    </div>
  );
}

export function Problem({ error }: { error: unknown }) {
  if (!error) return null;
  return <div class="problem" role="alert">{error instanceof Error ? error.message : String(error)}</div>;
}

export function Json({ value, label }: { value: unknown; label: string }) {
  return <pre class="code" tabIndex={0} role="region" aria-label={label}>{JSON.stringify(value, null, 2)}</pre>;
}

/** Load data, and load it again when `query` changes or after `everyMs`. */
export function useData<T>(path: string, query: Record<string, string | number> = {}, everyMs = 0) {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  const key = JSON.stringify([path, query]);
  useEffect(() => {
    const control = new AbortController();
    get<T>(path, query, control.signal).then(
      (found) => {
        setData(found);
        setError(null);
      },
      (problem) => problem.name !== "AbortError" && setError(problem),
    );
    return () => control.abort();
  }, [key, round]);
  useEffect(() => {
    if (!everyMs) return;
    const timer = setInterval(() => document.hidden || setRound((number) => number + 1), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return { data, error, reload: () => setRound((number) => number + 1) };
}
