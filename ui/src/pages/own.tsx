import { signOut } from "../api";
import { Badge, Card, Empty, Page, Problem, useData } from "../components";
import { dollars, duration, moment, plural, whole } from "../format";

interface Totals {
  calls: number;
  errors: number;
  refused: number;
  searches: number;
  requests: number;
  tokens: number;
  cost: number;
}

interface Own {
  user: string;
  teams: string[];
  tokens: { name: string; created: number; toolsets: string[] | null }[];
  limits: { meter: string; used: number; limit: number }[];
  day: Totals;
  month: Totals;
  calls: { at: number; kind: string; name: string; ok: boolean; refused: boolean; ms: number }[];
}

const describeTotals = (totals: Totals): string =>
  `${plural(totals.calls, "call")}, ${plural(totals.searches, "search", "searches")}, ${plural(totals.errors, "error")}, ${whole(totals.refused)} refused` +
  (totals.requests ? `; ${plural(totals.requests, "model request")}, ${plural(totals.tokens, "token")}, ${dollars(totals.cost)}` : "");

/** All that users see who are not administrators. */
export function OwnPage({ onLeave }: { onLeave: () => void }) {
  const { data, error } = useData<Own>("own", {}, 5000);
  const leave = <button type="button" onClick={() => signOut().then(onLeave)}>Sign out</button>;
  return (
    <main id="main">
      <Page title="Your activity" about="Your own calls, tokens and usage. Only administrators see more." actions={leave}>
        <Problem error={error} />
        {data && <OwnSummary data={data} />}
        {data && <OwnCalls calls={data.calls} />}
      </Page>
    </main>
  );
}

function OwnSummary({ data }: { data: Own }) {
  return (
    <>
      <Card title={data.user}>
        <p>Teams: {data.teams.join(", ") || "none"}</p>
        <p>Last 24 hours: {describeTotals(data.day)}</p>
        <p>Last 30 days: {describeTotals(data.month)}</p>
        {data.limits.map((each) => <p key={each.meter}>{each.meter.replaceAll("_", " ")}: {whole(each.used)} of {whole(each.limit)}</p>)}
      </Card>
      <Card title="Tokens">
        {data.tokens.length ? (
          <ul class="rows">{data.tokens.map((each) => <li key={each.name}><b>{each.name}</b> <span class="muted">since {moment(each.created, "month")}; {each.toolsets ? each.toolsets.join(", ") : "not limited to toolsets"}</span></li>)}</ul>
        ) : <Empty title="No tokens">Your administrator can create one for you.</Empty>}
      </Card>
    </>
  );
}

function OwnCalls({ calls }: { calls: Own["calls"] }) {
  return (
    <Card title="Newest calls">
      {calls.length ? (
        <div class="scroll-x"><table class="table">
          <thead><tr><th>Time</th><th>Tool</th><th>Result</th><th class="num">Duration</th></tr></thead>
          <tbody>{calls.map((each, index) => (
            <tr key={index}>
              <td>{moment(each.at, "month")} {moment(each.at, "day")}</td>
              <td class="mono">{each.kind === "search" ? "tool_search" : each.name}</td>
              <td>{each.kind === "search" ? "" : <Badge value={each.refused ? "refused" : each.ok ? "ok" : "error"} tone={each.refused ? "warn" : each.ok ? "good" : "bad"} />}</td>
              <td class="num">{duration(each.ms)}</td>
            </tr>
          ))}</tbody>
        </table></div>
      ) : <Empty title="No calls yet">They appear here when a program uses tools with your token or login.</Empty>}
    </Card>
  );
}
