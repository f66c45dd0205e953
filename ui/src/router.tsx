// Pages by address: /ui/PAGE or /ui/PAGE/DETAIL.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

export interface Route {
  page: string;
  detail: string;
}

const MOVED = "toolfold-moved";

function read(): Route {
  const [page = "", ...rest] = location.pathname.replace(/^\/ui\/?/, "").split("/");
  return { page: page || "overview", detail: decode(rest.join("/")) };
}

/** Decode a part of the address; empty if it is malformed. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

export function go(page: string, detail = ""): void {
  const path = `/ui/${page}${detail ? `/${encodeURIComponent(detail)}` : ""}`;
  if (path === location.pathname) return;
  history.pushState(null, "", path);
  dispatchEvent(new Event(MOVED));
}

export function useRoute(): Route {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const update = () => setRoute(read());
    addEventListener("popstate", update);
    addEventListener(MOVED, update);
    return () => {
      removeEventListener("popstate", update);
      removeEventListener(MOVED, update);
    };
  }, []);
  return route;
}

export function Link({ to, detail = "", class: name, children, current }: {
  to: string;
  detail?: string;
  class?: string;
  current?: boolean;
  children: ComponentChildren;
}) {
  const path = `/ui/${to}${detail ? `/${encodeURIComponent(detail)}` : ""}`;
  const follow = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(to, detail);
  };
  return <a href={path} class={name} aria-current={current ? "page" : undefined} onClick={follow}>{children}</a>;
}
