// The answers of the server (docs/server.md), and what the modules of this page hand to each other.

export type Points = number[][];

export interface ServerInfo {
  version: string;
  read_only: boolean;
  keys: boolean;
  allowed: { read: boolean; write: boolean };
  formats: string[];
  limits: { k: number; points: number; body_bytes: number };
}

/** Of an index that cannot be opened there is nothing but the name and the problem. */
export interface IndexSummary {
  name: string;
  sets: number | null;
  dim: number | null;
  distance_kind: string | null;
  weighted: boolean | null;
  parts: boolean | null;
  problem: string | null;
}

export interface IndexInfo {
  name: string;
  sets: number;
  dim: number;
  weighted: boolean;
  recall: number | null;
  points: number | null;
  sizes: { smallest: number; largest: number } | null;
  embedding: string;
  vector_length: number;
  distance_kind: string;
  search: string;
  preprocess: string;
  parts: unknown;
  engine: string;
  read_only: boolean;
  /** Whether the server asks for a key. */
  keys: boolean;
}

export type Metadata = Record<string, unknown>;

export interface SetPage {
  total: number;
  next: number | null;
  sets: { id: string; size: number; metadata: Metadata }[];
}

/** A set to draw: at most three coordinates a point. */
export interface Cloud {
  points: Points;
  weights: number[] | null;
  size: number;
}

export interface StoredCloud extends Cloud {
  id: string;
  metadata: Metadata;
}

export interface PointsAnswer {
  projected: boolean;
  sets: StoredCloud[];
}

export interface ParseAnswer {
  total: number;
  sets: { id: string; points: Points; weights: number[] | null; metadata: Metadata }[];
}

export interface Stats {
  recall: number | null;
  seconds: number;
  candidates: number[] | null;
  scanned: number[] | null;
  full_distances: number[] | null;
  unlike: boolean[] | null;
}

export interface SearchAnswer {
  distance_kind: string;
  hits: { ids: string[]; distances: number[]; metadata: Metadata[] };
  stats: Stats;
}

export interface Explanation {
  kind: string;
  distance: number;
  slices?: number[];
  x_elements?: number[];
  y_elements?: number[];
  directions?: Points | null;
  x: { points: Points; weights: number[] | null };
  y: { points: Points; weights: number[] | null };
  projected: boolean;
  pairs?: [number, number, number][] | null;
  nearest?: number[];
  distances?: number[];
  weights?: number[];
}

export interface Field {
  name: string;
  kind: "text" | "number" | "boolean" | "mixed";
  sets: number;
  distinct: number;
  least: number | null;
  greatest: number | null;
  values: { value: string | number | boolean; count: number }[];
}

export interface FieldsAnswer {
  sampled: number;
  total: number;
  fields: Field[];
}

export type Bounds = [number, number, number, number];

export interface MapAnswer {
  state: string;
  done: number;
  total: number;
  sets: number;
  stale: boolean;
  bounds: Bounds | null;
  max_level: number;
  explained: [number, number] | null;
}

export interface TileAnswer {
  level: number;
  x: number;
  y: number;
  bounds: Bounds;
  count: number;
  ids: string[];
  points: [number, number][];
  values: unknown[] | null;
  density: number[][];
}

export interface PlaceAnswer {
  queries: ([number, number] | null)[] | null;
  ids: ([number, number] | null)[] | null;
}

/** What is searched for. Strokes are lists of coordinates 0 to 255: x, y from the top, x, y, ... */
export type Query =
  | { kind: "stored"; id: string }
  | { kind: "drawn"; strokes: number[][] }
  | { kind: "given"; points: Points; weights: number[] | null; name: string };

/** Everything that the address says. */
export interface State {
  index: string;
  query: Query | null;
  /** The id of the set whose match is open. */
  open: string;
  k: number;
  where: string;
  /** "" is the default of the index. */
  recall: string;
  rerank: string;
  certify: boolean;
  match: string;
  /** Whether a drawing is moved and scaled to the usual place and size; null lets the page decide. */
  fit: boolean | null;
  offset: number;
  colour: string;
  /** Centre and zoom of the map, or null for all of it. */
  at: [number, number, number] | null;
}

export interface Frame {
  centre: number[];
  side: number;
}
