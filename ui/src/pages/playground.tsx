import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "../api";
import { Card, Empty, Page, Problem, TryDemo, useData } from "../components";
import { duration, percent, plural, whole } from "../format";

interface Explained {
  name: string;
  source: string;
  shown: boolean;
  why: string;
  ranks: { keyword: number | null; semantic: number | null; fused: number | null };
  similarity: number | null;
  score: number | null;
  tokens: number;
  matched: string[];
}

interface Report {
  message: string;
  selected: string[];
  need: number | null;
  needed: boolean | null;
  leg: string | null;
  why?: string;
  tokens_all: number;
  tokens_sent: number;
  ms: number;
  ms_by_leg: Record<string, number>;
  request: { placement: string; array: string[]; tokens_array: number; tail: string; tokens_tail: number };
  tools: Explained[];
  total: number;
  problem: string;
  settings: { mode: string; top_k: number };
}

interface Choices {
  modes: string[];
  mode: string;
  top_k: number;
  toolsets: string[];
  models: string[];
  model: string;
}

const MODE_TEXTS: Record<string, string> = {
  auto: "auto: by the number and size of the tools",
  eager: "eager: send every tool",
  tool_search: "tool_search: the model searches",
  keyword: "keyword: best by words",
  semantic: "semantic: best by meaning",
  hybrid: "hybrid: words and meaning",
  both: "both: hybrid, and the model searches",
};
const EXAMPLES = ["where is my parcel?", "find the file with the invoices", "thanks, that is all"];
const PAUSE_MS = 250;
const RETRY_MS = 3000;

export function PlaygroundPage() {
  const { data: choices, error: choicesError } = useData<Choices>("choices");
  const [message, setMessage] = useState("");
  const [mode, setMode] = useState("");
  const [topK, setTopK] = useState(8);
  const [toolset, setToolset] = useState("");
  const [model, setModel] = useState("");
  const [report, setReport] = useState<Report | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const [round, setRound] = useState(0);
  const control = useRef<AbortController | null>(null);
  useEffect(() => {
    if (choices) {
      setTopK(choices.top_k);
    }
  }, [choices]);
  useEffect(() => {
    if (!message.trim()) return;
    const timer = setTimeout(() => {
      control.current?.abort();
      const current = (control.current = new AbortController());
      setBusy(true);
      post<Report>("explain", { message, mode, top_k: topK, toolsets: toolset ? [toolset] : [], model }, current.signal).then(
        (found) => {
          setReport(found);
          setError(null);
          setBusy(false);
        },
        (problem) => {
          if (problem.name === "AbortError") return;
          setError(problem);
          setBusy(false);
        },
      );
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [message, mode, topK, toolset, model, round]);
  const isIndexing = report !== null && report.leg !== null && report.tools.every((tool) => tool.ranks.semantic === null) && !["keyword", "eager"].includes(report.settings.mode);
  useEffect(() => {
    if (!isIndexing) return;
    const timer = setTimeout(() => setRound((number) => number + 1), RETRY_MS);
    return () => clearTimeout(timer);
  }, [report, isIndexing]);
  return (
    <Page title="Playground" about="Type a message and see which tools a model would be sent, and why the others are not.">
      <Problem error={choicesError ?? error} />
      <Card>
        <label class="field">
          <span>Message</span>
          <textarea rows={2} value={message} placeholder="For example: where is my parcel?" onInput={(event) => setMessage(event.currentTarget.value)} />
        </label>
        <div class="controls">
          <label class="field"><span>Mode</span>
            <select value={mode} onChange={(event) => setMode(event.currentTarget.value)}><option value="">{`As configured${choices?.mode ? ` (${choices.mode})` : ""}`}</option>{(choices?.modes ?? []).map((each) => <option key={each} value={each}>{MODE_TEXTS[each] ?? each}</option>)}</select>
          </label>
          <label class="field"><span>Toolset</span>
            <select value={toolset} onChange={(event) => setToolset(event.currentTarget.value)}><option value="">All that are granted</option>{(choices?.toolsets ?? []).map((each) => <option key={each} value={each}>{each}</option>)}</select>
          </label>
          <label class="field"><span>Tools to select</span>
            <input type="number" min={1} max={50} value={topK} onInput={(event) => setTopK(Math.max(1, Math.min(50, Number(event.currentTarget.value) || 1)))} />
          </label>
          <label class="field"><span>Model</span>
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)}><option value="">Unknown model</option>{(choices?.models ?? []).map((each) => <option key={each} value={each}>{each}</option>)}</select>
          </label>
        </div>
      </Card>
      <div aria-live="polite" aria-busy={busy}>
        {isIndexing && <p class="warn-text notice">The tools are still being indexed. Until then, only the words of the message are compared.</p>}
        {report ? <ReportView report={report} /> : <Card><Empty title="Nothing to explain yet">
          The ranking appears here while you type. For example:
          <p class="chips">{EXAMPLES.map((each) => <button key={each} type="button" class="chip" onClick={() => setMessage(each)}>{each}</button>)}</p>
          <TryDemo />
        </Empty></Card>}
      </div>
    </Page>
  );
}

function ReportView({ report }: { report: Report }) {
  const saved = report.tokens_all - report.tokens_sent;
  const isEverything = report.tools.every((tool) => tool.shown);
  return (
    <>
      <Problem error={report.problem} />
      {(report.why || isEverything) && (
        <p class="reason">
          {isEverything ? `All ${plural(report.total, "tool")} that can be used are sent` : `${plural(report.selected.length, "tool")} of ${whole(report.total)} are sent`}
          {report.why ? `: ${report.why}.` : " in this mode."}
          {isEverything && " Choose another mode above to see what selection would send."}
        </p>
      )}
      <dl class="figures">
        <div class="figure"><dt>Sent</dt><dd>{plural(report.selected.length, "tool")}<span class="note">of {whole(report.total)}</span></dd></div>
        <div class="figure"><dt>Tokens</dt><dd>{whole(report.tokens_sent)}<span class="note">{saved >= 0 ? `${percent(saved, report.tokens_all)} less than all tools (${whole(report.tokens_all)})` : `all tools: ${whole(report.tokens_all)}`}</span></dd></div>
        <div class="figure"><dt>Time</dt><dd>{duration(report.ms)}<span class="note">{Object.entries(report.ms_by_leg).map(([leg, ms]) => `${leg} ${duration(ms)}`).join(", ")}</span></dd></div>
        <div class="figure"><dt>Needs a tool</dt><dd>{report.need === null ? "–" : `${Math.round(report.need * 100)}%`}<span class="note">{report.leg ? `search method: ${report.leg}` : "no selection in this mode"}</span></dd></div>
      </dl>
      <Card title="Ranking" aside={<span class="muted">placement: {report.request.placement}</span>}>
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Ranking of the tools">
          <table class="table ranking">
            <thead><tr><th>Tool</th><th class="num">Words</th><th class="num">Meaning</th><th class="num">Both</th><th class="num">Score</th><th class="num">Tokens</th><th>Why</th></tr></thead>
            <tbody>
              {report.tools.map((tool) => (
                <tr key={tool.name} class={tool.shown ? "sent" : ""}>
                  <td><span class="mark" aria-hidden="true">{tool.shown ? "●" : "○"}</span><span class="mono">{tool.name}</span><span class="visually-hidden">{tool.shown ? " (sent)" : " (not sent)"}</span>{tool.matched.length > 0 && <small class="matched">{tool.matched.join(", ")}</small>}</td>
                  <td class="num">{tool.ranks.keyword ?? "–"}</td>
                  <td class="num">{tool.ranks.semantic ?? "–"}</td>
                  <td class="num">{tool.ranks.fused ?? "–"}</td>
                  <td class="num">{tool.score === null ? "–" : tool.score.toFixed(2)}</td>
                  <td class="num">{whole(tool.tokens)}</td>
                  <td class="why">{tool.why}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {report.total > report.tools.length && <p class="muted">{whole(report.total - report.tools.length)} more tools are not shown.</p>}
      </Card>
      {report.request.tail && <Card title="Beside the message"><pre class="code wrap" tabIndex={0} role="region" aria-label="Text beside the message">{report.request.tail}</pre></Card>}
    </>
  );
}
