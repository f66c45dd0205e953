// Line icons, drawn on a 20 × 20 grid.

const PATHS: Record<string, string> = {
  overview: "M3 10.5 10 4l7 6.5M5 9v7h3.5v-4h3v4H15V9",
  catalog: "M4 5h12M4 10h12M4 15h12",
  servers: "M4 4h12v5H4zM4 11h12v5H4zM7 6.5h.01M7 13.5h.01",
  clients: "M10 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM4 17c.5-3.5 3-5 6-5s5.500 1.500 6 5",
  users: "M7.500 9.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5zM2.500 16c.4-3 2.500-4 5-4s4.600 1 5 4M12.500 9.200a2.300 2.300 0 1 0 0-4.400M14.500 12.200c1.800.5 2.800 1.600 3 3.800",
  playground: "M9 15a6 6 0 1 0 0-12 6 6 0 0 0 0 12zM13.500 13.500 17 17",
  activity: "M3 10h3l2.500-6 3.500 12 2.500-6H17",
  approvals: "M10 3l6 2.500v4c0 4-2.500 6.500-6 7.500-3.500-1-6-3.500-6-7.500v-4zM7.500 10l2 2 3.500-4",
  chat: "M4 4h12v9H9l-4 3v-3H4z",
  evaluation: "M4 16V9M8.500 16V4M13 16v-5M17 16V7",
  sun: "M10 13.500a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7zM10 2v1.500M10 16.500V18M2 10h1.500M16.500 10H18M4.300 4.300l1 1M14.700 14.700l1 1M4.300 15.700l1-1M14.700 5.300l1-1",
  moon: "M16 11.500A6.500 6.500 0 0 1 8.500 4a6.500 6.500 0 1 0 7.500 7.500z",
  auto: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM10 3v14M10 6l5 1M10 9.500h6.500M10 13l5 .5",
  close: "M5 5l10 10M15 5L5 15",
  menu: "M3 5.500h14M3 10h14M3 14.500h14",
  out: "M8 4H4v12h4M12 7l3 3-3 3M15 10H8",
  refresh: "M16 10a6 6 0 1 1-2-4.500M16 3v4h-4",
  send: "M4 10l12-6-4 12-3-5z",
  stop: "M6 6h8v8H6z",
  plus: "M10 4v12M4 10h12",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}
