import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { Badge, Json, Page, Problem, Segmented } from "../components";
import { plural, short, whole } from "../format";
import { Icon } from "../icons";
import { go } from "../router";

interface Row {
  id: string;
  name: string;
  emoji: string;
  source: string;
  state: string;
  reason: string;
  tokens: number;
  calls: number;
  summary: string;
}

interface Listing {
  total: number;
  matching: number;
  collapsed: number;
  states: Record<string, number>;
  sources: Record<string, number>;
  rows: Row[];
}

interface Held {
  fingerprint: string;
  why: string;
  findings: string[];
  changes: string[];
  difference: string[];
}

interface Examples {
  source: "phrasebook" | "enriched" | "author" | "learned";
  note: string;
  is_used: boolean;
  messages: { text: string; note: string }[];
}

interface Detail extends Row {
  title: string;
  description: string;
  toolset: string;
  effects: string[];
  missing_env: string[];
  schema: unknown;
  sent: unknown;
  signature: string;
  tokens_sent: number;
  tokens_signature: number;
  examples: Examples[];
  held?: Held;
}

const PAGE_ROWS = 100;
const ROW_HEIGHT = 52;
const MARGIN_ROWS = 12;
const SORTS = { use: "Own first", name: "Name", source: "Source", state: "State", tokens: "Tokens", calls: "Calls" } as const;
const HOLD_REASONS: Record<string, string> = {
  new: "This tool is new. It is not used until you accept it.",
  changed: "This tool has changed since you accepted it. It is not used until you accept the change.",
  flagged: "The text of this tool looks like instructions to the model. It is not used unless you accept it.",
};

/** Loads the pages of the list that are in view, and forgets them when the filter changes. */
function useListing(query: Record<string, string | number>, version: number) {
  const key = JSON.stringify([query, version]);
  const [listing, setListing] = useState<Listing | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [, redraw] = useState(0);
  const pages = useRef<{ key: string; rows: Map<number, Row[] | null> }>({ key: "", rows: new Map() });
  const load = (page: number) => {
    const known = pages.current;
    if (known.rows.has(page)) return;
    known.rows.set(page, null);
    get<Listing>("tools", { ...query, offset: page * PAGE_ROWS, limit: PAGE_ROWS }).then(
      (found) => {
        if (pages.current !== known) return;
        known.rows.set(page, found.rows);
        setListing(found);
        setError(null);
        redraw((number) => number + 1);
      },
      (problem) => {
        known.rows.delete(page);
        setError(problem);
      },
    );
  };
  useEffect(() => {
    pages.current = { key, rows: new Map() };
    load(0);
  }, [key]);
  const row = (index: number): Row | undefined => pages.current.rows.get(Math.floor(index / PAGE_ROWS))?.[index % PAGE_ROWS];
  return { listing, error, row, load };
}

export function CatalogPage({ detail }: { detail: string }) {
  const [text, setText] = useState("");
  const [words, setWords] = useState("");
  const [state, setState] = useState("");
  const [source, setSource] = useState("");
  const [sort, setSort] = useState<keyof typeof SORTS>("use");
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const timer = setTimeout(() => setWords(text), 150);
    return () => clearTimeout(timer);
  }, [text]);
  const query = useMemo(() => ({ q: words, state, source, sort, collapse: 1 }), [words, state, source, sort]);
  const { listing, error, row, load } = useListing(query, version);
  const count = listing?.matching ?? 0;
  const states = Object.entries(listing?.states ?? {}).sort((a, b) => b[1] - a[1]);
  const isFiltered = !!(words || state || source);
  const usable = states.reduce((sum, [name, number]) => (["off", "unavailable", "held"].includes(name) ? sum : sum + number), 0);
  const about = listing && (isFiltered ? `${plural(listing.total, "tool")}; ${whole(count)} match` : `${plural(usable, "tool")} can be used`);
  return (
    <Page title="Catalog" about={about ?? "Loading…"}>
      <Problem error={error} />
      <div class="filters" role="search">
        <input type="search" aria-label="Filter tools" placeholder="Filter by name, source or description" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <select aria-label="State" value={state} onChange={(event) => setState(event.currentTarget.value)}>
          <option value="">All states</option>
          {states.map(([name, number]) => <option key={name} value={name}>{`${name} (${whole(number)})`}</option>)}
        </select>
        <select aria-label="Source" value={source} onChange={(event) => setSource(event.currentTarget.value)}>
          <option value="">All sources</option>
          {Object.entries(listing?.sources ?? {}).map(([name, number]) => <option key={name} value={name}>{`${name} (${whole(number)})`}</option>)}
        </select>
        <select aria-label="Sort by" value={sort} onChange={(event) => setSort(event.currentTarget.value as keyof typeof SORTS)}>
          {Object.entries(SORTS).map(([key, label]) => <option key={key} value={key}>{`Sort: ${label}`}</option>)}
        </select>
      </div>
      {!!listing?.collapsed && <p class="muted">{plural(listing.collapsed, "built-in tool")} cannot be used here, for example without a key. <button type="button" class="link" onClick={() => setState("unavailable")}>Show them with the reasons</button></p>}
      <div class={`split ${detail ? "with-detail" : ""}`}>
        <VirtualList count={count} isLoading={!listing} row={row} load={load} chosen={detail} resetOn={JSON.stringify(query)} />
        {detail && <ToolDetail key={detail} name={detail} onChange={() => setVersion((number) => number + 1)} />}
      </div>
    </Page>
  );
}

function VirtualList({ count, isLoading, row, load, chosen, resetOn }: {
  count: number;
  isLoading: boolean;
  row: (index: number) => Row | undefined;
  load: (page: number) => void;
  chosen: string;
  resetOn: string;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const [active, setActive] = useState(0);
  const measure = () => box.current && setView({ top: box.current.scrollTop, height: box.current.clientHeight });
  useEffect(() => {
    if (box.current) box.current.scrollTop = 0;
    setActive(0);
    measure();
  }, [resetOn]);
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - MARGIN_ROWS);
  const last = Math.min(count, Math.ceil((view.top + view.height) / ROW_HEIGHT) + MARGIN_ROWS);
  useEffect(() => {
    for (let page = Math.floor(first / PAGE_ROWS); page <= Math.floor(Math.max(first, last - 1) / PAGE_ROWS); page++) load(page);
  });
  const move = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -count, End: count }[event.key];
    if (event.key === "Enter") {
      const found = row(active);
      if (found) go("catalog", found.id);
    }
    if (!step || !box.current) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(count - 1, active + step));
    setActive(next);
    const top = next * ROW_HEIGHT;
    if (top < box.current.scrollTop) box.current.scrollTop = top;
    if (top + ROW_HEIGHT > box.current.scrollTop + box.current.clientHeight - 40) box.current.scrollTop = top + ROW_HEIGHT + 40 - box.current.clientHeight;
  };
  return (
    <div class="list" ref={box} role="grid" aria-label="Tools" aria-rowcount={count + 1} tabIndex={0} aria-activedescendant={count ? `tool-${active}` : undefined} onScroll={measure} onKeyDown={move}>
      <div class="list-head" role="row" aria-rowindex={1}>
        <span role="columnheader">Tool</span><span role="columnheader">Source</span><span role="columnheader">State</span>
        <span role="columnheader" class="num">Tokens</span><span role="columnheader" class="num">Calls</span>
      </div>
      <div class="list-body" role="rowgroup" style={{ height: `${Math.max(1, count) * ROW_HEIGHT}px` }}>
        {!count && <div role="row" class="list-row"><span role="gridcell" class="muted">{isLoading ? "Loading…" : "No tool matches."}</span></div>}
        {Array.from({ length: Math.max(0, last - first) }, (_, offset) => {
          const index = first + offset;
          const each = row(index);
          return (
            <div
              key={index}
              id={`tool-${index}`}
              class={`list-row ${each && each.id === chosen ? "chosen" : ""} ${index === active ? "active" : ""}`}
              role="row"
              aria-rowindex={index + 2}
              aria-selected={each ? each.id === chosen : false}
              style={{ transform: `translateY(${index * ROW_HEIGHT}px)` }}
              onClick={() => {
                setActive(index);
                if (each) go("catalog", each.id);
              }}
            >
              <span role="gridcell" class="list-name"><b class="mono">{each?.name ?? " "}</b><small>{each ? (each.state === "unavailable" ? each.reason : each.summary) : "Loading…"}</small></span>
              <span role="gridcell" class="clip muted">{each?.source}</span>
              <span role="gridcell">{each && <Badge value={each.state} />}</span>
              <span role="gridcell" class="num">{each ? short(each.tokens) : ""}</span>
              <span role="gridcell" class="num">{each ? (each.calls ? short(each.calls) : "–") : ""}</span>
            </div>
          );
        })}
      </div>
    </div>
  );
}

function ToolDetail({ name, onChange }: { name: string; onChange: () => void }) {
  const [tool, setTool] = useState<Detail | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    get<Detail>("tool", { name }).then(setTool, setError);
  }, [name]);
  useEffect(() => {
    if (tool) heading.current?.focus({ preventScroll: true });
  }, [tool?.id]);
  const send = async (path: string, body: object) => {
    setBusy(true);
    try {
      setTool(await post<Detail>(path, body));
      setError(null);
      onChange();
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  const close = () => go("catalog");
  return (
    <aside class="detail" aria-label="Tool" onKeyDown={(event) => event.key === "Escape" && close()}>
      <button type="button" class="icon-button detail-close" aria-label="Close" onClick={close}><Icon name="close" /></button>
      <Problem error={error} />
      {tool && (
        <>
          <h2 ref={heading} tabIndex={-1} class="mono break">{tool.name}</h2>
          <p class="meta"><Badge value={tool.state} /><span>from {tool.source}</span><span>{plural(tool.tokens, "token")}</span><span>{plural(tool.calls, "call")} in 30 days</span></p>
          {tool.reason && !tool.held && <p class="warn-text">{tool.reason}</p>}
          {tool.held ? <HeldReview tool={tool} held={tool.held} busy={busy} onAccept={() => send("tools/accept", { name: tool.id, fingerprint: tool.held!.fingerprint })} /> : <KnownTool tool={tool} busy={busy} onSend={(change) => send("tools/change", { name: tool.id, change })} />}
        </>
      )}
      {!tool && !error && <p class="muted">Loading…</p>}
    </aside>
  );
}

function HeldReview({ tool, held, busy, onAccept }: { tool: Detail; held: Held; busy: boolean; onAccept: () => void }) {
  return (
    <>
      <p class="warn-text">{HOLD_REASONS[held.why] ?? tool.reason}</p>
      {[...held.findings, ...held.changes].length > 0 && <ul class="notes">{[...held.findings, ...held.changes].map((each) => <li key={each}>{each}</li>)}</ul>}
      <h3>What is different</h3>
      <pre class="code diff" tabIndex={0} role="region" aria-label="Differences">
        {held.difference.map((line, index) => <span key={index} class={line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : ""}>{line}{"\n"}</span>)}
      </pre>
      <button type="button" class="primary" disabled={busy} onClick={onAccept}>Accept this version</button>
    </>
  );
}

const EXAMPLE_SOURCES = { phrasebook: "From the phrasebook", enriched: "Written by a model", author: "From the tool's author", learned: "Learned from use" };
const VIEWS = ["sent", "schema", "signature"] as const;

function KnownTool({ tool, busy, onSend }: { tool: Detail; busy: boolean; onSend: (change: string) => void }) {
  const [view, setView] = useState<(typeof VIEWS)[number]>("sent");
  return (
    <>
      <p class="description">{tool.description}</p>
      {tool.missing_env.length > 0 && <p class="warn-text">Needs the environment variables {tool.missing_env.join(", ")}.</p>}
      <div class="buttons">
        {tool.state === "off"
          ? <button type="button" class="primary" disabled={busy} onClick={() => onSend("enable")}>Enable</button>
          : <button type="button" disabled={busy} onClick={() => onSend("disable")}>Disable</button>}
        {tool.state === "pinned"
          ? <button type="button" disabled={busy} onClick={() => onSend("unpin")}>Unpin</button>
          : tool.state !== "off" && <button type="button" disabled={busy} onClick={() => onSend("pin")}>Pin: always show it</button>}
      </div>
      <dl class="facts">
        <div><dt>Toolset</dt><dd>{tool.toolset}</dd></div>
        {tool.effects.length > 0 && <div><dt>Effects</dt><dd>{tool.effects.join(", ")}</dd></div>}
      </dl>
      <div class="wide-only side-by-side">
        <div><h3>Schema <span class="muted">{plural(tool.tokens, "token")}</span></h3><Json value={tool.schema} label="Schema" /></div>
        <div><h3>What the model is sent <span class="muted">{plural(tool.tokens_sent, "token")}</span></h3><Json value={tool.sent} label="What the model is sent" /></div>
      </div>
      <div class="narrow-only">
        <Segmented label="View" values={VIEWS} value={view} onChange={setView} text={(each) => ({ sent: "Sent", schema: "Schema", signature: "Search result" })[each]} />
        {view === "signature" ? <pre class="code" tabIndex={0} role="region" aria-label="Search result">{tool.signature}</pre> : <Json value={view === "sent" ? tool.sent : tool.schema} label={view} />}
      </div>
      <div class="wide-only">
        <h3>In a search result <span class="muted">{plural(tool.tokens_signature, "token")}</span></h3>
        <pre class="code wrap" tabIndex={0} role="region" aria-label="Search result">{tool.signature}</pre>
      </div>
      <h3>Example messages</h3>
      {!tool.examples.length && <p class="muted">None. <code>toolfold enrich</code> writes some, so that search finds the tool by more words.</p>}
      {tool.examples.map((each) => (
        <div key={each.source + each.note} class="examples">
          <p><b>{EXAMPLE_SOURCES[each.source]}</b>{each.note && <span class="muted"> {each.note}</span>}{!each.is_used && <> <Badge value="not used" /></>}</p>
          <ul class="quotes" aria-label={`Example messages: ${EXAMPLE_SOURCES[each.source]}`}>{each.messages.map((one) => <li key={one.text}>{one.text}{one.note && <small class="muted">{one.note}</small>}</li>)}</ul>
        </div>
      ))}
    </>
  );
}
