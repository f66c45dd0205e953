import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { Badge, Empty, Page, Problem, TryDemo } from "../components";
import { duration, plural, short } from "../format";
import { Icon } from "../icons";
import { type LiveEvent, useEvents, useLive } from "../live";
import { go } from "../router";
import { Question } from "./approvals";

interface Message {
  kind: "user" | "assistant" | "call" | "note" | "problem";
  text: string;
  id?: string;
  state?: string;
  tone?: string;
  note?: string;
}

interface Chat {
  model: string;
  /** Messages to try; only the demo proposes some. */
  suggestions: string[];
  sessions: { id: string; title: string; updated: number }[];
  messages: { role: "user" | "assistant"; text: string }[];
  is_working: boolean;
}

/** Add what an event tells to the messages of a chat. */
function append(messages: Message[], event: LiveEvent): Message[] {
  const last = messages[messages.length - 1];
  switch (event.type) {
    case "text_received":
      return last?.kind === "assistant" ? [...messages.slice(0, -1), { ...last, text: last.text + event.text }] : [...messages, { kind: "assistant", text: event.text }];
    case "tools_selected": {
      const note = `${plural(event.shown.length, "tool")} sent${event.why ? `: ${event.why}` : ""}; ${short(event.tokens)} tokens, ${short(event.tokens_saved)} saved`;
      const isKnown = [...messages].reverse().find((each) => each.kind === "note")?.text === note;
      return isKnown ? messages : [...messages, { kind: "note", text: note }];
    }
    case "tool_started":
      return [...messages, { kind: "call", id: event.call_id, text: event.tool, state: "running", tone: "warn", note: JSON.stringify(event.arguments).slice(0, 160) }];
    case "tool_finished":
      return messages.map((each) => each.kind === "call" && each.id === event.call_id ? { ...each, state: event.refused ? "refused" : event.ok ? duration(event.duration_s * 1000) : "failed", tone: event.refused ? "warn" : event.ok ? "good" : "bad", note: event.ok ? each.note : event.error } : each);
    case "turn_finished":
      if (event.reason === "completed") return messages;
      return [...messages, { kind: "problem", text: event.error || `The agent stopped: ${event.reason.replace("_", " ")}.` }];
    default:
      return messages;
  }
}

export function ChatPage({ detail }: { detail: string }) {
  const [session, setSession] = useState(detail);
  const [chat, setChat] = useState<Chat | null>(null);
  const [messages, setMessages] = useState<Message[]>([]);
  const [text, setText] = useState("");
  const [working, setWorking] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const current = useRef(session);
  const end = useRef<HTMLDivElement>(null);
  const live = useLive();
  current.current = session;
  const load = (id: string) => get<Chat>("chat", { session: id }).then((found) => {
    setChat(found);
    setWorking(found.is_working);
    setMessages(found.messages.map((each) => ({ kind: each.role, text: each.text })));
  }, setError);
  useEffect(() => void load(session), []);
  useEvents((events) => {
    const own = events.filter((event) => event.session_id === current.current);
    if (!own.length) return;
    setMessages((before) => own.reduce(append, before));
    if (own.some((event) => event.type === "turn_finished")) setWorking(false);
  });
  useEffect(() => end.current?.scrollIntoView({ block: "end" }), [messages, live.approvals.length]);
  const send = async () => {
    const message = text.trim();
    if (!message || working) return;
    setText("");
    setError(null);
    setWorking(true);
    setMessages((before) => [...before, { kind: "user", text: message }]);
    try {
      const found = await post<{ session: string }>("chat/send", { session, message });
      current.current = found.session;
      setSession(found.session);
    } catch (problem) {
      setError(problem);
      setWorking(false);
    }
  };
  const open = (id: string) => {
    setSession(id);
    current.current = id;
    setMessages([]);
    go("chat", id);
    void load(id);
  };
  const questions = live.approvals.filter((each) => each.session === session);
  return (
    <Page
      title="Chat"
      about={chat ? (chat.model ? `The agent uses ${chat.model}.` : "No model is configured.") : "Loading…"}
      actions={<><select aria-label="Session" value={session} onChange={(event) => open(event.currentTarget.value)}><option value="">New session</option>{session && !chat?.sessions.some((each) => each.id === session) && <option value={session}>This session</option>}{(chat?.sessions ?? []).map((each) => <option key={each.id} value={each.id}>{each.title || each.id}</option>)}</select></>}
    >
      <div class="chat">
        <div class="chat-log" role="log" aria-label="Conversation" tabIndex={0}>
          {!messages.length && chat && (
            <div class="chat-empty">
              {chat.model
                ? <Empty title="Write a message">The agent uses the tools, and asks before a call that needs approval.{chat.suggestions.map((each) => <p key={each} class="spaced"><button type="button" onClick={() => setText(each)}>{each}</button></p>)}</Empty>
                : <Empty title="The agent needs a model">Configure one with <code>toolfold config set agent.model PROVIDER:MODEL</code>, or try the chat with a scripted model and sample tools.<TryDemo /></Empty>}
            </div>
          )}
          {messages.map((each, index) => <Line key={index} message={each} />)}
          {questions.map((each) => <Question key={each.id} approval={each} />)}
          {working && !questions.length && <p class="muted" role="status">Working…</p>}
          <div ref={end} />
        </div>
        <Problem error={error} />
        <form class="composer" onSubmit={(event) => { event.preventDefault(); void send(); }}>
          <textarea aria-label="Message" rows={2} value={text} placeholder="Message the agent" disabled={chat !== null && !chat.model} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); void send(); } }} />
          {working
            ? <button type="button" aria-label="Stop" onClick={() => session && void post("chat/stop", { session })}><Icon name="stop" /></button>
            : <button type="submit" class="primary" aria-label="Send" disabled={!text.trim()}><Icon name="send" /></button>}
        </form>
      </div>
    </Page>
  );
}

function Line({ message }: { message: Message }) {
  if (message.kind === "call") return <div class="chat-call"><Badge value={message.state ?? ""} tone={message.tone} /><span class="mono">{message.text}</span><span class="muted clip">{message.note}</span></div>;
  if (message.kind === "note") return <p class="chat-note muted">{message.text}</p>;
  if (message.kind === "problem") return <div class="problem">{message.text}</div>;
  return <div class={`bubble ${message.kind}`}><span class="visually-hidden">{message.kind === "user" ? "You: " : "Agent: "}</span>{message.text}</div>;
}
