import { useState } from "preact/hooks";
import { BarChart, ShareBar } from "../charts";
import { Badge, Card, Empty, Page, Problem, Segmented, TryDemo, useData } from "../components";
import { dollars, duration, percent, plural, short, whole } from "../format";
import { type ServerState, useLive } from "../live";
import { Link } from "../router";

interface Totals {
  calls: number; errors: number; refused: number; searches: number; hits: number; misses: number;
  requests: number; tokens: number; saved_tokens: number; saved_by_lists: number; cost: number; saved_cost: number;
}

interface Overview {
  until: number;
  totals: Totals;
  series: (Totals & { at: number })[];
  latency: { p50: number | null; p90: number | null; p99: number | null };
  tools: { name: string; calls: number; errors: number; ms: number }[];
  states: Record<string, number>;
  catalog: { tools: number; shown: number; tokens_all: number; tokens_shown: number };
  servers: ServerState[];
  is_stored: boolean;
  /** How tools are selected for a message; `eager` sends all of them. */
  selection: string;
}

const PERIODS = ["hour", "day", "week", "month"] as const;
const UNITS = ["dollars", "tokens"] as const;
const REFRESH_MS = 5000;

function Figure({ label, value, note }: { label: string; value: string; note: string }) {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd>{value}<span class="note">{note}</span></dd>
    </div>
  );
}

export function OverviewPage() {
  const [period, setPeriod] = useState<(typeof PERIODS)[number]>("day");
  const { data, error } = useData<Overview>("overview", { period }, REFRESH_MS);
  const [unit, setUnit] = useState<(typeof UNITS)[number]>("dollars");
  const live = useLive();
  const actions = <Segmented label="Period" values={PERIODS} value={period} onChange={setPeriod} text={(each) => ({ hour: "Hour", day: "24 hours", week: "7 days", month: "30 days" })[each]} />;
  if (!data) return <Page title="Overview" actions={actions}><Problem error={error} /><div class="loading" aria-busy="true">Loading…</div></Page>;
  const { totals, latency, catalog } = data;
  const servers = live.servers.length ? live.servers : data.servers;
  const bars = (values: (each: Totals) => number[]) => ({ until: data.until, bars: data.series.map((each) => ({ at: each.at, values: values(each) })) });
  const deferred = catalog.tokens_all - catalog.tokens_shown;
  return (
    <Page title="Overview" about={data.is_stored ? undefined : "The usage history is turned off; these figures start with this program."} actions={actions}>
      <Problem error={error} />
      {!totals.calls && !totals.requests && !totals.searches && (
        <Card title="Nothing was recorded in this period">
          <ol class="steps">
            <li>Connect a client with <code>toolfold connect</code>, or write to the agent on the page <Link to="chat">Chat</Link>.</li>
            <li>{servers.length ? <>Check on the page <Link to="servers">Servers</Link> that your servers are up.</> : <><Link to="servers">Add a server</Link>, or take over those of your other programs with <code>toolfold mcp import</code>.</>}</li>
            <li>See on the page <Link to="playground">Playground</Link> which tools a message needs.</li>
          </ol>
          <TryDemo />
        </Card>
      )}
      <dl class="figures">
        <Figure label="Tokens saved" value={short(totals.saved_tokens)} note={totals.saved_by_lists ? `${short(totals.saved_by_lists)} of them by gateway clients (estimated)` : "in requests to models"} />
        <Figure label="Cost saved" value={dollars(totals.saved_cost)} note={totals.cost ? `${dollars(totals.cost)} were spent` : "of models with known prices"} />
        <Figure label="Tool calls" value={short(totals.calls)} note={totals.calls ? `${whole(totals.errors)} failed, ${whole(totals.refused)} refused` : "none in this period"} />
        <Figure label="Hit rate of searches" value={percent(totals.hits, totals.searches)} note={totals.searches ? `${plural(totals.searches, "search", "searches")}: ${whole(totals.hits)} led to a call` : "no searches in this period"} />
        <Figure label="Misses" value={short(totals.misses)} note={totals.searches ? `searches without a result (${percent(totals.misses, totals.searches)})` : "no searches in this period"} />
        <Figure label="Call duration, median" value={duration(latency.p50)} note={latency.p50 === null ? "no calls in this period" : `90%: ${duration(latency.p90)}, 99%: ${duration(latency.p99)}`} />
        <Figure label="Model requests" value={short(totals.requests)} note={totals.requests ? `${short(totals.tokens)} tokens` : "none in this period"} />
        <Figure label="Servers" value={`${whole(servers.filter((each) => each.state !== "failed" && each.state !== "login").length)} of ${whole(servers.length)}`} note={servers.length ? "can be used" : "none added yet"} />
      </dl>
      <div class="columns">
        <Card title="Tool calls">
          <BarChart title="Tool calls over time" series={[{ name: "succeeded", class: "c1" }, { name: "failed", class: "bad" }, { name: "refused", class: "warn" }]} {...bars((each) => [each.calls - each.errors - each.refused, each.errors, each.refused])} />
        </Card>
        <Card title="Searches">
          <BarChart title="Searches over time" series={[{ name: "led to a call", class: "c2" }, { name: "result not used", class: "c3" }, { name: "nothing found", class: "warn" }]} {...bars((each) => [each.hits, each.searches - each.hits - each.misses, each.misses])} />
        </Card>
        <Card title="Tokens saved">
          <BarChart title="Tokens saved over time" series={[{ name: "agent and proxy", class: "c2" }, { name: "gateway clients (estimated)", class: "c3" }]} {...bars((each) => [each.saved_tokens - each.saved_by_lists, each.saved_by_lists])} />
        </Card>
        <Card title="Cost of models" aside={<Segmented label="Unit of the cost" values={UNITS} value={unit} onChange={setUnit} text={(each) => ({ dollars: "Dollars", tokens: "Tokens" })[each]} />}>
          {unit === "dollars"
            ? <BarChart title="Cost over time" format={dollars} smallest={0.04} series={[{ name: "spent", class: "c1" }, { name: "saved", class: "c2" }]} {...bars((each) => [each.cost, each.saved_cost])} />
            : <BarChart title="Tokens over time" series={[{ name: "used", class: "c1" }, { name: "saved", class: "c2" }]} {...bars((each) => [each.tokens, each.saved_tokens])} />}
        </Card>
        <Card title="Catalog" aside={<Link to="catalog">All tools</Link>}>
          <p class="lead"><b>{plural(catalog.tools, "tool")}</b> can be used. A model is sent {data.selection !== "eager" && deferred <= 0 ? "those" : `${whole(catalog.shown)} of them`}{deferred > 0 ? <>, which saves about <b>{short(deferred)} of {short(catalog.tokens_all)} tokens</b> in every request.</> : data.selection === "eager" ? ": all fit in a request." : ` that fit its message${data.selection === "auto" ? ", or all if they are few" : ""}.`}</p>
          <ShareBar label="Tools by state" parts={[["core", "c1"], ["pinned", "c3"], ["shown", "good"], ["deferred", "c2"], ["held", "warn"], ["unavailable", "bad"], ["off", "faint"]].map(([name, tone]) => ({ name, class: tone, value: data.states[name] ?? 0 }))} />
        </Card>
        <Card title="Servers" aside={<Link to="servers">Manage</Link>}>
          {servers.length ? (
            <ul class="health">{servers.map((server) => (
              <li key={server.name}>
                <span class="health-name">{server.name}</span>
                <Badge value={server.state} />
                <span class="muted">{plural(server.tools, "tool")}{server.held ? `, ${server.held} held` : ""}</span>
                {server.error && <span class="health-error">{server.error}</span>}
              </li>
            ))}</ul>
          ) : <Empty title="No MCP servers yet"><Link to="servers">Add one</Link>, or take over those of your other programs with <code>toolfold mcp import</code>.</Empty>}
        </Card>
        <Card title="Most used tools" class="wide">
          {data.tools.length ? (
            <table class="table">
              <thead><tr><th>Tool</th><th class="num">Calls</th><th class="num">Failed</th><th class="num">Average</th></tr></thead>
              <tbody>{data.tools.map((tool) => (
                <tr key={tool.name}><td class="mono clip">{tool.name}</td><td class="num">{whole(tool.calls)}</td><td class="num">{tool.errors ? whole(tool.errors) : "–"}</td><td class="num">{duration(tool.ms)}</td></tr>
              ))}</tbody>
            </table>
          ) : <Empty title="No calls in this period">Connect your client with <code>toolfold connect</code>, or choose a longer period.</Empty>}
        </Card>
      </div>
    </Page>
  );
}
