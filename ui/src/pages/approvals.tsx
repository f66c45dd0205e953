import { useState } from "preact/hooks";
import { post } from "../api";
import { Badge, Card, Empty, Page, Problem } from "../components";
import { caller, clock } from "../format";
import { type Answer, type Approval, useLive } from "../live";
import { describeEvents } from "./activity";

export function ApprovalsPage() {
  const live = useLive();
  const decided = describeEvents(live.events).filter((each) => each.decision && each.decision.state !== "waiting").slice(0, 20);
  return (
    <Page title="Approvals" about="Calls that wait for your decision. Without an answer they are refused.">
      <div aria-live="assertive" class="stack">
        {live.approvals.map((each) => <Question key={each.id} approval={each} />)}
        {!live.approvals.length && <Card><Empty title="Nothing waits for you">Keep a page of the dashboard open: agents, and clients that cannot ask you themselves, then ask here. The number of open questions is in the title of the tab.</Empty></Card>}
      </div>
      {decided.length > 0 && (
        <Card title="Decided">
          <ul class="decided">{decided.map((each) => (
            <li key={each.key}><time>{clock(each.decision!.at)}</time><Badge value={each.decision!.state} tone={each.decision!.state === "allowed" ? "good" : "bad"} /><span class="mono break">{each.title}</span><span class="muted break">{[each.who, each.decision!.text].filter(Boolean).join("; ")}</span></li>
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
  const isShort = (each: Answer) => each.value === "once" || each.value === "deny";
  const broader = approval.answers.filter((each) => !isShort(each));
  return (
    <section class={`card question ${approval.severity}`} aria-label={`Approval of ${approval.tool}`}>
      <div class="card-head">
        <h2>Allow <span class="mono break">{approval.tool}</span> to run?</h2>
        <div class="card-aside">{approval.severity && <Badge value={approval.severity} />}<time class="muted">{clock(approval.at)}</time></div>
      </div>
      <pre class="code wrap" tabIndex={0} role="region" aria-label={approval.is_command ? "Command" : "Arguments"}>{approval.command}</pre>
      <dl class="facts">
        <div><dt>Who asks</dt><dd>{caller(approval) || "an agent of this program"} <span class="muted">session {approval.session}</span></dd></div>
        <div><dt>Why you are asked</dt><dd>{approval.reason}</dd></div>
        {approval.part && <div><dt>The part that matters</dt><dd><code>{approval.part}</code></dd></div>}
        {approval.also.length > 0 && <div><dt>Also</dt><dd><ul>{approval.also.map((each) => <li key={each}>{each}</li>)}</ul></dd></div>}
      </dl>
      <Problem error={error} />
      <div class="buttons">
        {approval.answers.filter(isShort).map((each) => (
          <button key={each.value} type="button" class={each.value === "once" ? "primary" : "danger"} disabled={!!sent} onClick={() => answer(each.value)}>{each.text}</button>
        ))}
      </div>
      {broader.length > 0 && (
        <details class="spaced">
          <summary>Broader answers</summary>
          <ul class="broader">{broader.map((each) => (
            <li key={each.value}><button type="button" disabled={!!sent} onClick={() => answer(each.value)}>{each.text}</button><span class="muted">{each.meaning}</span></li>
          ))}</ul>
        </details>
      )}
    </section>
  );
}
