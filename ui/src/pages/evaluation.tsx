import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { LineChart } from "../charts";
import { Badge, Card, Empty, Page, Problem, Segmented } from "../components";
import { duration, plural, share, short, whole } from "../format";

interface State {
  modes: string[];
  top_k: number;
  own_tools: number;
  max_messages: number;
  max_tools: number;
  number: number;
  state: "none" | "running" | "done" | "cancelled" | "failed";
  phase: string;
  done: number;
  total: number;
  problem: string;
  seconds: number;
}

interface Quality {
  kind: string;
  count: number;
  recall: Record<string, number>;
  mrr: number;
  ndcg: number;
}

interface Miss {
  message: string;
  wanted: string;
  rank: string;
  first: string[];
  is_nothing_selected: boolean;
  reasons: string[];
}

interface ModeResult {
  mode: string;
  quality: Quality[];
  tokens_sent: number;
  ms: { p50: number; p99: number };
  errors: { what: string; count: number; total: number }[];
  curve: { depth: number; tokens: number; recall: number }[];
  missed: number;
  worst: Miss[];
}

interface Result {
  tools: number;
  messages: number;
  messages_with_tools: number;
  tokens_all: number;
  top_k: number;
  problems: string[];
  seconds: number;
  modes: ModeResult[];
}

const POLL_MS = 500;
const MAX_FILE_BYTES = 9_000_000;
const TOOL_CHOICES = ["own", "sample", "file"] as const;
const MESSAGE_CHOICES = ["file", "sample"] as const;
const LINE_CLASSES: Record<string, string> = { keyword: "warn", semantic: "c1", hybrid: "c2", rerank: "c3" };
const TOOLS_EXAMPLE = '{"type": "function", "function": {"name": "track_parcel", "description": "…", "parameters": {"type": "object"}}}';
const MESSAGES_EXAMPLE = '{"id": 1, "query": "where is my parcel?", "gold": ["track_parcel"]}\n{"id": 2, "query": "thanks!", "gold": []}';

/** The text of a file; a gzipped one is unpacked, up to a limit. */
async function readFile(file: File): Promise<string> {
  const stream = file.name.endsWith(".gz") ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.byteLength;
    if (size > MAX_FILE_BYTES) {
      void reader.cancel();
      throw new Error(`${file.name} is larger than ${short(MAX_FILE_BYTES)} bytes. Use toolfold eval.`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

export function EvaluationPage() {
  const [state, setState] = useState<State | null>(null);
  const [result, setResult] = useState<Result | null>(null);
  const [error, setError] = useState<unknown>(null);
  const load = () => get<State>("evaluation").then(setState, setError);
  useEffect(() => void load(), []);
  useEffect(() => {
    if (state?.state !== "running") return;
    const timer = setTimeout(load, POLL_MS);
    return () => clearTimeout(timer);
  }, [state]);
  useEffect(() => {
    if (state?.state === "done") get<Result>("evaluation/result").then(setResult, setError);
  }, [state?.state, state?.number]);
  const start = (body: object) => {
    setError(null);
    post<State>("evaluation/start", body).then((started) => {
      setResult(null);
      setState(started);
    }, setError);
  };
  return (
    <Page title="Evaluation" about="Measure how well tools are found for your messages, and what that costs, before you change settings.">
      <Problem error={error} />
      {state && <Settings state={state} onStart={start} onError={setError} />}
      {state && <RunState state={state} onCancel={() => post<State>("evaluation/cancel").then(setState, setError)} />}
      {result && state?.state !== "running" && <ResultView key={state?.number} result={result} />}
      {!result && state?.state === "none" && (
        <Card>
          <Empty title="No evaluation yet">
            Label some of your messages with the tools that they need, or measure the sample tools and messages first, which takes about a minute. The same report is printed by <code>toolfold eval</code>.
            <p class="spaced"><button type="button" class="primary" onClick={() => start({ tools: "sample", messages: "sample", modes: state.modes, top_k: state.top_k })}>Measure the sample</button></p>
          </Empty>
        </Card>
      )}
    </Page>
  );
}

function Settings({ state, onStart, onError }: { state: State; onStart: (body: object) => void; onError: (problem: unknown) => void }) {
  const [tools, setTools] = useState<(typeof TOOL_CHOICES)[number]>("own");
  const [messages, setMessages] = useState<(typeof MESSAGE_CHOICES)[number]>("file");
  const [catalog, setCatalog] = useState("");
  const [queries, setQueries] = useState("");
  const [modes, setModes] = useState(state.modes);
  const [topK, setTopK] = useState(state.top_k);
  const submit = (event: Event) => {
    event.preventDefault();
    onStart({ tools, messages, catalog, queries, modes, top_k: topK });
  };
  const switchMode = (mode: string) => setModes(modes.includes(mode) ? modes.filter((each) => each !== mode) : [...modes, mode]);
  return (
    <Card>
      <form onSubmit={submit} class="evaluation-form">
        <fieldset>
          <legend>Tools</legend>
          <Segmented label="Tools" values={TOOL_CHOICES} value={tools} onChange={setTools} text={(each) => ({ own: `In use (${whole(state.own_tools)})`, sample: "Sample", file: "File" })[each]} />
          {tools === "file" && <LinesInput label="Tools, one function definition per line" example={TOOLS_EXAMPLE} value={catalog} onChange={setCatalog} onError={onError} />}
        </fieldset>
        <fieldset>
          <legend>Messages</legend>
          <Segmented label="Messages" values={MESSAGE_CHOICES} value={messages} onChange={setMessages} text={(each) => ({ file: "Your own", sample: "Sample" })[each]} />
          {messages === "file" && <LinesInput label="Messages, one JSON object per line: id, query, and the needed tools as gold" example={MESSAGES_EXAMPLE} value={queries} onChange={setQueries} onError={onError} />}
        </fieldset>
        <div class="evaluation-options">
          <fieldset class="checks">
            <legend>Modes</legend>
            {state.modes.map((mode) => <label key={mode} class="check"><input type="checkbox" checked={modes.includes(mode)} onChange={() => switchMode(mode)} />{mode}</label>)}
          </fieldset>
          <label class="field"><span>Tools per message</span><input type="number" min={1} max={50} value={topK} onInput={(event) => setTopK(Math.max(1, Math.min(50, Number(event.currentTarget.value) || 1)))} /></label>
          <button type="submit" class="primary" disabled={state.state === "running"}>Run</button>
        </div>
      </form>
    </Card>
  );
}

function LinesInput({ label, example, value, onChange, onError }: { label: string; example: string; value: string; onChange: (text: string) => void; onError: (problem: unknown) => void }) {
  const picker = useRef<HTMLInputElement>(null);
  const [file, setFile] = useState("");
  const read = async (chosen: File | undefined) => {
    if (!chosen) return;
    try {
      onChange(await readFile(chosen));
      setFile(chosen.name);
      onError(null);
    } catch (problem) {
      onError(problem);
    }
  };
  const clear = () => {
    setFile("");
    onChange("");
  };
  // A file of megabytes is not put into a text field, which would make the page slow.
  return (
    <div class="lines-input">
      {file
        ? <p class="file-name"><span class="mono break">{file}</span><span class="muted">{plural(value.split("\n").filter((line) => line.trim()).length, "line")}</span><button type="button" onClick={clear}>Remove</button></p>
        : <label class="field"><span>{label}</span><textarea class="mono" rows={4} spellcheck={false} placeholder={example} value={value} onInput={(event) => onChange(event.currentTarget.value)} /></label>}
      <input ref={picker} type="file" hidden accept=".jsonl,.json,.ndjson,.txt,.gz" aria-label={`File: ${label}`} onChange={(event) => void read(event.currentTarget.files?.[0])} />
      {!file && <button type="button" onClick={() => picker.current?.click()}>Choose a file</button>}
    </div>
  );
}

function RunState({ state, onCancel }: { state: State; onCancel: () => void }) {
  if (state.state === "cancelled" || state.state === "failed") return <Problem error={state.problem} />;
  if (state.state !== "running") return null;
  return (
    <Card>
      <div class="run-state" role="status">
        <div><p>{state.phase[0].toUpperCase() + state.phase.slice(1)}{state.total ? `: ${whole(state.done)} of ${whole(state.total)}` : "…"}</p>
          <progress max={state.total || undefined} value={state.total ? state.done : undefined} aria-label="Progress" /></div>
        <button type="button" onClick={onCancel}>Cancel</button>
      </div>
    </Card>
  );
}

function ResultView({ result }: { result: Result }) {
  const [mode, setMode] = useState(result.modes[result.modes.length - 1].mode);
  const chosen = result.modes.find((each) => each.mode === mode) ?? result.modes[0];
  const hasQuality = result.modes.some((each) => each.quality.length > 0);
  return (
    <>
      {result.problems.map((each) => <p key={each} class="warn-text flat">{each}</p>)}
      <p class="muted" role="status">{plural(result.tools, "tool")} ({whole(result.tokens_all)} tokens), {plural(result.messages, "message")}, {whole(result.messages_with_tools)} of which need a tool. Measured in {duration(result.seconds * 1000)}.</p>
      <Card title="Modes">{hasQuality ? <ModeTable result={result} /> : <p>No message has a <code>gold</code> tool, so recall cannot be measured.</p>}</Card>
      <div class={hasQuality ? "columns start" : ""}>
      {hasQuality && <RecallCard result={result} numbered={chosen.mode} />}
      <Card title="Worst messages" aside={result.modes.length > 1 && <Segmented label="Mode of the worst messages" values={result.modes.map((each) => each.mode)} value={chosen.mode} onChange={setMode} />}>
        <WorstTable result={chosen} />
      </Card>
      </div>
      <KindTable result={chosen} />
    </>
  );
}

function ModeTable({ result }: { result: Result }) {
  const depths = Object.keys(result.modes[0].quality[0].recall);
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Modes compared">
      <table class="table modes">
        <thead><tr><th>Mode</th>{depths.map((depth) => <th key={depth} class="num" title={`Share of the needed tools among the best ${depth}`}>R@{depth}</th>)}<th class="num" title="Mean reciprocal rank of the first needed tool">MRR</th><th class="num">nDCG@10</th><th class="num">Tokens sent</th><th class="num">Needed, none sent</th><th class="num">Not needed, some sent</th><th class="num">CPU time</th></tr></thead>
        <tbody>{result.modes.map((each) => {
          const all = each.quality[0];
          const missing = each.errors.filter((one) => one.what.startsWith("tool needed"));
          const idle = each.errors.filter((one) => one.what.startsWith("no tool needed"));
          const rate = (errors: ModeResult["errors"]) => share(errors.reduce((sum, one) => sum + one.count, 0), errors.reduce((sum, one) => sum + one.total, 0));
          return (
            <tr key={each.mode}>
              <th scope="row">{each.mode}</th>
              {depths.map((depth) => <td key={depth} class="num">{all.recall[depth].toFixed(3)}</td>)}
              <td class="num">{all.mrr.toFixed(3)}</td>
              <td class="num">{all.ndcg.toFixed(3)}</td>
              <td class="num">{whole(each.tokens_sent)} <span class="muted">({share(each.tokens_sent, result.tokens_all)})</span></td>
              <td class="num">{rate(missing)}</td>
              <td class="num">{rate(idle)}</td>
              <td class="num">{duration(each.ms.p50)} <span class="muted">(99%: {duration(each.ms.p99)})</span></td>
            </tr>
          );
        })}</tbody>
      </table>
    </div>
  );
}

function RecallCard({ result, numbered }: { result: Result; numbered: string }) {
  const curves = result.modes.filter((each) => each.curve.length).map((each) => ({
    name: each.mode,
    class: LINE_CLASSES[each.mode] ?? "c3",
    isNumbered: each.mode === numbered,
    points: each.curve.map((point) => ({ x: point.tokens, y: point.recall, mark: String(point.depth), label: `${each.mode}, ${plural(point.depth, "tool")}: ${(100 * point.recall).toFixed(1)}% with ${whole(point.tokens)} tokens` })),
  }));
  return (
    <Card title="Recall and tokens">
      <LineChart title="Share of the needed tools that are sent, against the tokens of the tools sent with a message" curves={curves} xLabel="tokens of the tools sent with a message" yLabel="share of the needed tools that are sent" note={`Numbers: tools sent (${numbered}).`} />
      <details class="spaced">
        <summary>As a table</summary>
        <div class="scroll-x spaced" tabIndex={0} role="region" aria-label="Recall and tokens by number of tools">
          <table class="table">
            <thead><tr><th>Mode</th><th class="num">Tools</th><th class="num">Tokens</th><th class="num">Recall</th></tr></thead>
            <tbody>{result.modes.flatMap((each) => each.curve.map((point) => <tr key={`${each.mode} ${point.depth}`}><td>{each.mode}</td><td class="num">{point.depth}</td><td class="num">{whole(point.tokens)}</td><td class="num">{point.recall.toFixed(3)}</td></tr>))}</tbody>
          </table>
        </div>
      </details>
    </Card>
  );
}

function WorstTable({ result }: { result: ModeResult }) {
  if (!result.worst.length) return <Empty title={result.quality.length ? "For every message, the needed tools are ranked first." : "No message needs a tool."} />;
  return (
    <>
      <ul class="worst" aria-label="Worst messages">
        {result.worst.map((each, index) => (
          <li key={index}>
            <Badge value={each.is_nothing_selected ? "none sent" : `rank ${each.rank}`} tone={each.is_nothing_selected || each.rank === "none" ? "bad" : "warn"} />
            <div>
              <p class="break">{each.message}</p>
              <p class="muted">needs <b class="mono break">{each.wanted}</b></p>
              <ul class="reasons">{each.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>
            </div>
          </li>
        ))}
      </ul>
      {result.missed > result.worst.length && <p class="muted spaced">{whole(result.missed - result.worst.length)} more messages whose tool is not ranked first.</p>}
    </>
  );
}

function KindTable({ result }: { result: ModeResult }) {
  const kinds = result.quality.slice(1);
  if (!kinds.length) return null;
  return (
    <Card title={`Kinds of messages (${result.mode})`}>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Kinds of messages">
        <table class="table">
          <thead><tr><th>Kind</th><th class="num">Messages</th>{Object.keys(kinds[0].recall).map((depth) => <th key={depth} class="num">R@{depth}</th>)}<th class="num">MRR</th></tr></thead>
          <tbody>{kinds.map((each) => <tr key={each.kind}><td class="break">{each.kind}</td><td class="num">{whole(each.count)}</td>{Object.entries(each.recall).map(([depth, value]) => <td key={depth} class="num">{value.toFixed(3)}</td>)}<td class="num">{each.mrr.toFixed(3)}</td></tr>)}</tbody>
        </table>
      </div>
    </Card>
  );
}
