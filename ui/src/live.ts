// The live state of the page: newest events, open approval questions and servers, read from one stream.

import { useEffect, useState } from "preact/hooks";
import { get, openStream } from "./api";

export interface LiveEvent {
  key: string;
  type: string;
  session_id: string;
  at: number;
  [field: string]: any;
}

export interface Answer {
  value: string;
  text: string;
  meaning: string;
}

export interface Approval {
  id: string;
  at: number;
  tool: string;
  emoji: string;
  session: string;
  client?: string;
  user?: string;
  process?: string | number;
  is_command: boolean;
  command: string;
  part: string;
  reason: string;
  also: string[];
  severity: string;
  category: string;
  rules: string[];
  answers: Answer[];
}

export interface ServerState {
  name: string;
  state: string;
  tools: number;
  held: number;
  error: string;
  protocol: string;
  seconds: number;
  next_try: number;
}

export interface Live {
  connected: boolean;
  events: LiveEvent[];
  missed: number;
  approvals: Approval[];
  servers: ServerState[];
}

const MAX_EVENTS = 600;
const RETRY_MS = 2000;

let state: Live = { connected: false, events: [], missed: 0, approvals: [], servers: [] };
const listeners = new Set<(live: Live) => void>();
const eventListeners = new Set<(events: LiveEvent[]) => void>();

function change(part: Partial<Live>): void {
  state = { ...state, ...part };
  listeners.forEach((listener) => listener(state));
}

export function useLive(): Live {
  const [live, setLive] = useState(state);
  useEffect(() => {
    listeners.add(setLive);
    setLive(state);
    return () => void listeners.delete(setLive);
  }, []);
  return live;
}

export function useEvents(listener: (events: LiveEvent[]) => void): void {
  useEffect(() => {
    eventListeners.add(listener);
    return () => void eventListeners.delete(listener);
  });
}

function receive(text: string): number | undefined {
  const message = JSON.parse(text);
  const part: Partial<Live> = {};
  if (message.events?.length) {
    part.events = [...state.events, ...message.events].slice(-MAX_EVENTS);
    eventListeners.forEach((listener) => listener(message.events));
  }
  if (message.missed) part.missed = state.missed + message.missed;
  if (message.approvals) part.approvals = message.approvals;
  if (message.servers) part.servers = message.servers;
  if (Object.keys(part).length) change(part);
  return message.position;
}

async function follow(position: number, signal: AbortSignal): Promise<number> {
  const stream = await openStream(`events?after=${position}`, signal);
  const reader = stream.pipeThrough<string>(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  change({ connected: true });
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return position;
    const messages = (rest + value).split("\n\n");
    rest = messages.pop() ?? "";
    for (const message of messages) position = receive(message.replace(/^data: /, "")) ?? position;
  }
}

export function startLive(): () => void {
  const control = new AbortController();
  const run = async () => {
    let position = 0;
    while (!control.signal.aborted) {
      try {
        if (!position) {
          const first = await get<{ events: LiveEvent[]; position: number }>("activity");
          change({ events: first.events });
          position = first.position;
        }
        position = await follow(position, control.signal);
      } catch {
        position = 0; // the server may be a new one, which counts from the start
      }
      change({ connected: false });
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  };
  void run();
  return () => control.abort();
}
