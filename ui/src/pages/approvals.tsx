import { useState } from "preact/hooks";
import { post } from "../api";
import { Badge, Card, Empty, Page, Problem } from "../components";
import { clock } from "../format";
import { type Approval, useLive } from "../live";
import { describeEvents } from "./activity";

export function ApprovalsPage() {
  const live = useLive();
  const answered = describeEvents(live.events).filter((each) => each.kind === "approvals" && each.state !== "asked").slice(0, 20);
  return (
    <Page title="Approvals" about="Calls that wait for your decision. Without an answer they are refused.">
      <div aria-live="assertive" class="stack">
        {live.approvals.map((each) => <Question key={each.id} approval={each} />)}
        {!live.approvals.length && <Card><Empty title="Nothing waits for you">While this page is open, agents and clients that cannot ask you themselves ask here.</Empty></Card>}
      </div>
      {answered.length > 0 && (
        <Card title="Decided">
          <ul class="decided">{answered.map((each) => (
            <li key={each.key}><time>{clock(each.at)}</time><Badge value={each.state} tone={each.tone} /><span class="mono">{each.title}</span><span class="muted">{each.parts.map(([, text]) => text).join("; ")}</span></li>
          ))}</ul>
        </Card>
      )}
    </Page>
  );
}

export function Question({ approval }: { approval: Approval }) {
  const [error, setError] = useState<unknown>(null);
  const [sent, setSent] = useState("");
  const answer = (value: string) => {
    setSent(value);
    post("approvals/answer", { id: approval.id, answer: value }).catch((problem) => {
      setError(problem);
      setSent("");
    });
  };
  return (
    <section class={`card question ${approval.severity}`} aria-label={`Approval of ${approval.tool}`}>
      <div class="card-head">
        <h2>Allow <span class="mono">{approval.tool}</span> to run?</h2>
        <div class="card-aside">{approval.severity && <Badge value={approval.severity} />}<time class="muted">{clock(approval.at)}</time></div>
      </div>
      <pre class="code wrap" tabIndex={0} role="region" aria-label={approval.is_command ? "Command" : "Arguments"}>{approval.command}</pre>
      <dl class="facts">
        <div><dt>Why you are asked</dt><dd>{approval.reason}</dd></div>
        {approval.part && <div><dt>The part that matters</dt><dd><code>{approval.part}</code></dd></div>}
        {approval.also.length > 0 && <div><dt>Also</dt><dd><ul>{approval.also.map((each) => <li key={each}>{each}</li>)}</ul></dd></div>}
        {approval.answers.length > 2 && <div><dt>Broader answers</dt><dd><ul class="plain">{approval.answers.filter((each) => each.value !== "once" && each.value !== "deny").map((each) => <li key={each.value}><b>{each.text}</b>: {each.meaning}</li>)}</ul></dd></div>}
      </dl>
      <Problem error={error} />
      <div class="buttons">
        {approval.answers.map((each) => (
          <button key={each.value} type="button" class={each.value === "once" ? "primary" : each.value === "deny" ? "danger" : ""} disabled={!!sent} onClick={() => answer(each.value)}>{each.text}</button>
        ))}
      </div>
    </section>
  );
}
