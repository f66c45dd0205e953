import { useMemo, useState } from "preact/hooks";
import { Badge, Card, Empty, Page, Segmented, TryDemo } from "../components";
import { caller, clock, duration, plural, short } from "../format";
import { type LiveEvent, useLive } from "../live";
import { Link } from "../router";

const KINDS = ["all", "calls", "searches", "models", "approvals"] as const;
const MAX_SHOWN = 200;

interface Entry {
  key: string;
  at: number;
  kind: (typeof KINDS)[number];
  title: string;
  state: string;
  tone: string;
  note: string;
  /** The arguments of a call in one line. */
  detail: string;
  /** The client, user and process that called. */
  who: string;
  /** What was asked and answered about a call that needs approval. */
  decision?: { state: "waiting" | "allowed" | "refused"; at: number; text: string };
  session: string;
  parts: [string, string][];
}

const asText = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** Describe the events in one line each, and everything about one call in one line. */
export function describeEvents(events: LiveEvent[]): Entry[] {
  const calls = new Map<string, Entry>();
  const entries: Entry[] = [];
  const add = (event: LiveEvent, entry: Partial<Entry>) => {
    const full: Entry = { key: event.key, at: event.at, kind: "all", title: "", state: "", tone: "plain", note: "", detail: "", who: caller(event), session: event.session_id, parts: [], ...entry };
    entries.push(full);
    return full;
  };
  for (const event of events) {
    const id = `${event.session_id} ${event.call_id}`;
    const call = calls.get(id);
    const findCall = () => {
      const found = call ?? add(event, { kind: "calls", title: event.tool });
      found.who ||= caller(event);
      calls.set(id, found);
      return found;
    };
    switch (event.type) {
      case "tool_started": {
        const parts = Object.entries(event.arguments).map(([name, value]): [string, string] => [name, asText(value)]);
        Object.assign(findCall(), { state: "running", tone: "warn", parts, detail: parts.map(([name, text]) => `${name}: ${text}`).join("  ") });
        break;
      }
      case "tool_progressed":
        if (call) call.note = event.message || (event.total ? `${event.progress} of ${event.total}` : "");
        break;
      case "tool_finished": {
        const entry = findCall();
        entry.state = event.refused ? "refused" : event.ok ? "done" : "failed";
        entry.tone = event.refused ? "warn" : event.ok ? "good" : "bad";
        entry.note = duration(event.duration_s * 1000);
        entry.parts = [...entry.parts, [event.ok ? "result" : "error", event.ok ? event.result : event.error]];
        break;
      }
      case "tools_searched":
        add(event, { kind: "searches", title: event.queries.join(" · ") || "tool search", state: event.found.length ? `${event.found.length} found` : "nothing found", tone: event.found.length ? "accent" : "warn", parts: event.found.length ? [["found", event.found.join(", ")]] : [] });
        break;
      case "model_replied":
        add(event, { kind: "models", title: event.model, state: event.purpose === "summary" ? "summary" : "reply", tone: "accent", note: `${short(event.usage.input_tokens)} in, ${short(event.usage.output_tokens)} out, ${duration(event.duration_s * 1000)}`, parts: event.calls.length ? [["calls", event.calls.join(", ")]] : [] });
        break;
      case "tools_selected":
        add(event, { kind: "models", title: "tools selected", state: plural(event.shown.length, "tool"), note: `${short(event.tokens)} tokens, ${short(event.tokens_saved)} saved`, detail: event.why ?? "", parts: [...(event.why ? [["why", event.why] as [string, string]] : []), ["shown", event.shown.join(", ")]] });
        break;
      case "approval_asked": {
        const entry = findCall();
        entry.decision = { state: "waiting", at: event.at, text: event.reason };
        Object.assign(entry, { state: "waiting", tone: "warn", parts: [...entry.parts, ["asked for approval", event.reason]] });
        break;
      }
      case "approval_answered": {
        const entry = findCall();
        const state = event.allowed ? "allowed" : "refused";
        entry.decision = { state, at: event.at, text: event.reason };
        Object.assign(entry, { state: event.allowed ? "running" : state, tone: "warn", parts: [...entry.parts, [state, event.reason]] });
        break;
      }
      case "turn_started":
        add(event, { kind: "models", title: event.message, state: "message", tone: "accent", note: event.model });
        break;
      case "turn_finished":
        add(event, { kind: "models", title: event.text || event.error || "no answer", state: event.reason, tone: event.reason === "completed" ? "good" : "warn" });
        break;
      case "config_reloaded":
        add(event, { title: event.changes.join(", "), state: "settings", tone: "plain" });
        break;
      case "context_compressed":
        add(event, { kind: "models", title: "old messages summarised", state: "compressed", note: `${short(event.tokens_before)} → ${short(event.tokens_after)} tokens` });
        break;
    }
  }
  return entries.reverse();
}

export function ActivityPage() {
  const live = useLive();
  const [kind, setKind] = useState<(typeof KINDS)[number]>("all");
  const [paused, setPaused] = useState<LiveEvent[] | null>(null);
  const entries = useMemo(() => describeEvents(paused ?? live.events), [paused, live.events]);
  const shown = entries.filter((each) => kind === "all" || each.kind === kind || (kind === "approvals" && each.decision)).slice(0, MAX_SHOWN);
  return (
    <Page
      title="Activity"
      about={live.connected ? `Live${live.missed ? `; ${plural(live.missed, "event")} came too fast to be shown` : ""}` : "Connecting…"}
      actions={<><Segmented label="Kind" values={KINDS} value={kind} onChange={setKind} text={(each) => each[0].toUpperCase() + each.slice(1)} /><button type="button" aria-pressed={!!paused} onClick={() => setPaused(paused ? null : live.events)}>{paused ? "Resume" : "Pause"}</button></>}
    >
      <Card class="flush">
        {shown.length ? (
          <ul class="feed" aria-label="Events">
            {shown.map((each) => (
              <li key={each.key}>
                <details>
                  <summary>
                    <time>{clock(each.at)}</time>
                    <Badge value={each.state} tone={each.tone} />
                    <span class="feed-title"><b>{each.title}</b> {each.detail && <span class="muted">{each.detail}</span>}</span>
                    <span class="feed-who muted">{each.who}</span>
                    <span class="feed-note">{each.note}</span>
                  </summary>
                  <dl class="feed-parts">
                    {each.parts.map(([name, text]) => <div key={name}><dt>{name}</dt><dd><pre>{text || "–"}</pre></dd></div>)}
                    {each.who && <div><dt>called by</dt><dd><pre>{each.who}</pre></dd></div>}
                    {each.session && <div><dt>session</dt><dd><pre>{each.session}</pre></dd></div>}
                  </dl>
                </details>
              </li>
            ))}
          </ul>
        ) : <Empty title="Nothing has happened yet">Calls, searches, model replies and approvals appear here while they happen. Let a connected client use a tool, or <Link to="chat">write to the agent</Link>.<TryDemo /></Empty>}
      </Card>
    </Page>
  );
}
