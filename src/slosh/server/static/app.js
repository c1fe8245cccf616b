/**
 * The page: what the address says is asked of the server and shown. Everything a person does changes the state
 * (session.js), and every change of the state is shown by `refresh`.
 */

import { ask, isAbort, Latest, Problem } from "./api.js";
import { holds } from "./cloud.js";
import { Clouds } from "./clouds.js";
import { Controls } from "./controls.js";
import { byId } from "./dom.js";
import { usualFrame } from "./drawing.js";
import { showHeader, showNoHeader } from "./header.js";
import { QueryInput } from "./input.js";
import { CollectionMap } from "./map.js";
import { Matches } from "./matches.js";
import { Notices } from "./notices.js";
import { colourable, firstField } from "./palette.js";
import { queryCloud, queryName, querySet } from "./queries.js";
import { refusal } from "./refusals.js";
import { PAGE, Results } from "./results.js";
import { Session } from "./session.js";
import { Stage } from "./stage.js";
import { fieldOf } from "./text.js";
import { themeButton } from "./theme-choice.js";

/** @import {Field, FieldsAnswer, IndexInfo, IndexSummary, Query, SearchAnswer, ServerInfo, Points, SetPage, State} from "./types.d.ts" */
/** @import {Item} from "./cards.js" */
/** @import {Usual} from "./drawing.js" */
/** @import {Way} from "./session.js" */

/**
 * @typedef {object} Marked what of an answer is marked on the map
 * @property {{queries: Points | null, weights: number[] | null}} set the query, if it is not stored
 * @property {string | null} id of a query that is stored
 * @property {string[]} ids of its neighbours
 */

const SAMPLE = 48;
/** Sets from which the usual place and size are learnt. */

class App {
  #server = /** @type {ServerInfo | null} */ (null);
  #indexes = /** @type {IndexSummary[]} */ ([]);
  #info = /** @type {IndexInfo | null} */ (null);
  #fields = /** @type {Field[]} */ ([]);
  #usual = /** @type {Usual} */ (usualFrame([]));
  #answer = /** @type {{key: string, items: Item[], kind: string, marks: Marked | null} | null} */ (null);
  #searching = new Latest();
  #marking = new Latest();
  #clouds = new Clouds();
  #session = new Session(() => {
    this.#typed = false;
    this.#controls.stopTyping(); // whoever goes back has left what they typed
    void this.refresh();
  });
  #notices = new Notices(() => void this.start());
  #stage = new Stage((strokes, moving) => this.#drawn(strokes, moving));
  #controls = new Controls((change, typing) => {
    // Each kept keystroke is not an entry of the history: what is typed replaces the newest one.
    this.#change(change, typing && this.#typed ? "replace" : "push");
    this.#typed = typing;
  });
  #typed = false;
  #input = new QueryInput(
    (query) => {
      this.#notices.clear();
      this.#change({ query, open: "" }, "push");
    },
    (error) => this.#failed(error),
    (reading) => this.#results.setBusy(reading),
  );
  #results = new Results(
    (item) => this.#chosen(item),
    (item) => this.#map.colourOf(fieldOf(item.metadata, this.#colourField()?.name ?? "")),
    (offset) => this.#change({ offset }, "push"),
  );
  #match = new Matches({
    close: () => this.#closeMatch(),
    step: (by) => this.#step(by),
    searchFrom: (id) => this.#searchFrom(id),
    failed: (error) => this.#failed(error),
  });
  #map = new CollectionMap({
    choose: (id) => this.#searchFrom(id),
    moved: (at) => this.#change({ at }, "replace", false),
    cloudOf: async (id) => (await this.#clouds.get([id]).catch(() => new Map())).get(id) ?? null,
    failed: (error) => this.#failed(error),
  });

  constructor() {
    themeButton(byId("theme", HTMLButtonElement));
    byId("index", HTMLSelectElement).addEventListener("change", (event) => {
      const { value } = /** @type {HTMLSelectElement} */ (event.target);
      this.#change(
        { index: value, query: null, open: "", where: "", offset: 0, at: null, colour: "", fit: null },
        "push",
      );
    });
    byId("colour", HTMLSelectElement).addEventListener("change", (event) => {
      const { value } = /** @type {HTMLSelectElement} */ (event.target);
      this.#change({ colour: value }, "push");
    });
    byId("fit", HTMLInputElement).addEventListener("change", (event) => {
      this.#change({ fit: /** @type {HTMLInputElement} */ (event.target).checked }, "push");
    });
    byId("undo", HTMLButtonElement).addEventListener("click", () => this.#stage.undo());
    byId("clear", HTMLButtonElement).addEventListener("click", () => {
      this.#change({ query: null, open: "", offset: 0 }, "push");
      byId("pad", HTMLCanvasElement).focus({ preventScroll: true });
    });
    byId("skip", HTMLAnchorElement).addEventListener("click", (event) => {
      event.preventDefault(); // the address is ours
      this.#results.focus();
    });
  }

  /** Ask the server what there is, and show it. */
  async start() {
    try {
      this.#server = await ask("server");
      if (this.#server?.keys && !this.#server.allowed.read) {
        this.#notices.askForKey();
        return;
      }
      /** @type {{indexes: IndexSummary[]}} */
      const { indexes } = await ask("indexes");
      this.#indexes = indexes;
      this.#info = null;
      this.#notices.clear();
      await this.refresh();
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Show the state. */
  async refresh() {
    const name = this.#wantedIndex();
    this.#notices.leave();
    if (!name) {
      this.#close();
      this.#notices.noIndex();
      return;
    }
    try {
      if (this.#info?.name !== name) await this.#openIndex(name);
    } catch (error) {
      if (this.#wantedIndex() !== name) return; // another one is being opened meanwhile
      if (this.#shownIndex !== name) this.#close();
      if (error instanceof Problem && error.status === 404)
        this.#notices.unknownIndex(
          name,
          this.#indexes.map((each) => each.name),
        );
      else this.#failed(error);
      return;
    }
    if (this.#info?.name === this.#wantedIndex()) this.#show();
  }

  /** The name of the index of the address; by default the first one that can be opened. */
  #wantedIndex() {
    const first = this.#indexes.find((each) => !each.problem) ?? this.#indexes[0];
    return this.#session.state.index || first?.name;
  }

  /** @param {string} name */
  async #openIndex(name) {
    const path = `indexes/${encodeURIComponent(name)}`;
    /** @type {[IndexInfo, FieldsAnswer, SetPage]} */
    const [info, fields, sample] = await Promise.all([
      ask(path),
      ask(`${path}/fields`, { parameters: { values: 50 } }),
      ask(`${path}/sets`, { parameters: { limit: SAMPLE } }),
    ]);
    if (this.#isSettled(name)) return;
    this.#searching.cancel();
    this.#wanted = "";
    this.#clouds.setIndex(name);
    const clouds = await this.#clouds.get(sample.sets.map((set) => set.id));
    if (this.#isSettled(name)) return;
    this.#info = { ...info, name, keys: this.#server?.keys ?? false };
    this.#fields = fields.fields;
    this.#answer = null;
    this.#usual = usualFrame(info.dim === 2 ? [...clouds.values()] : []);
    this.#stage.setIndex(info);
    this.#controls.setIndex(info, this.#fields, this.#server?.limits.k ?? 1000);
    this.#input.setIndex(this.#info, this.#server?.formats ?? []);
    this.#map.setIndex(info.sets ? name : "");
    byId("map", HTMLElement).hidden = info.sets === 0;
    showHeader(this.#info, this.#indexes, this.#fields, this.#clouds.projected);
    this.#results.clear();
    this.#controls.explain("", "");
    this.#notices.clear();
    const columns = byId("columns", HTMLElement);
    columns.hidden = false;
    columns.classList.toggle("no-map", info.sets === 0);
    this.#shownIndex = name;
  }

  /**
   * Whether an index need not be opened any more: another one is wanted meanwhile, or a change of the address before
   * this one has opened it, too, and may be searching it.
   * @param {string} name
   */
  #isSettled(name) {
    return this.#wantedIndex() !== name || this.#info?.name === name;
  }

  /** Show no index: that of the address cannot be shown, and another one under it would pass for it. */
  #close() {
    this.#searching.cancel();
    this.#marking.cancel();
    this.#info = null;
    this.#answer = null;
    this.#wanted = "";
    this.#shownIndex = "";
    this.#match.hide();
    this.#map.setIndex("");
    this.#input.forgetIndex();
    byId("columns", HTMLElement).hidden = true;
    showNoHeader(this.#indexes);
    document.title = "slosh";
  }

  /** The name of the index that is to be seen. */
  #shownIndex = "";

  /** The index that is shown. */
  #opened() {
    if (!this.#info) throw new Error("no index is open");
    return this.#info;
  }

  /** The field whose values have colours. */
  #colourField() {
    const { colour } = this.#session.state;
    if (colour === "-") return null;
    const choices = this.#fields.filter(colourable);
    return choices.find((field) => field.name === colour) ?? (colour ? null : firstField(choices));
  }

  #show() {
    const { state } = this.#session;
    const field = this.#colourField();
    this.#map.setField(field);
    byId("colour", HTMLSelectElement).value = field?.name ?? "-";
    this.#map.setView(state.at);
    this.#controls.show(state);
    this.#showQuery(state);
    this.#find();
    if (state.open) this.#explain();
    else this.#match.hide();
    this.#results.cards.mark(state.open);
    const name = queryName(state.query);
    document.title = [name, this.#info?.name, "slosh"].filter(Boolean).join(" · ");
    if (this.#session.unread.length) this.#notices.unread(this.#session.unread.splice(0));
  }

  /** @param {State} state */
  #showQuery({ query }) {
    byId("query-name", HTMLElement).textContent = queryName(query);
    byId("clear", HTMLButtonElement).disabled = query === null;
    byId("undo", HTMLButtonElement).hidden = query?.kind !== "drawn";
    byId("fit-row", HTMLElement).hidden = query?.kind !== "drawn";
    byId("fit", HTMLInputElement).checked = this.#fits();
    if (query?.kind !== "given") this.#input.forgetFile();
    if (query?.kind === "drawn") this.#stage.showStrokes(query.strokes);
    else if (query === null) this.#stage.showCloud(null);
    else void this.#showQueryCloud(query);
  }

  /** @param {Query} query */
  async #showQueryCloud(query) {
    // Where there is none, the search says why.
    const cloud = await queryCloud(this.#opened().name, query, this.#clouds).catch(() => null);
    if (this.#session.state.query !== query) return;
    if (!cloud) {
      this.#stage.showCloud(null);
      return;
    }
    const alike = this.#usual.alike && holds(this.#usual.pad, cloud.points);
    this.#stage.showCloud(cloud, alike ? this.#usual.pad : null);
  }

  #fits() {
    return this.#session.state.fit ?? this.#usual.alike;
  }

  /** What the state asks for: nearest sets of the query, or a page of all sets. */
  #find() {
    const { state, lost } = this.#session;
    const key = JSON.stringify([
      this.#info?.name,
      state.query,
      state.k,
      state.where,
      state.recall,
      state.rerank,
      state.certify,
      state.match,
      state.offset,
      state.query?.kind === "drawn" && this.#fits(),
    ]);
    if (lost) {
      this.#notices.lostQuery();
      this.#withdraw("The query of this address was too long to be written into it.");
      return;
    }
    if (this.#answer?.key === key) {
      this.#searching.cancel();
      this.#wanted = key;
      this.#controls.explain("", "");
      this.#results.setBusy(false);
      this.#results.validate();
      this.#mark(this.#answer.marks);
      return;
    }
    const refused = state.query ? this.#controls.refuse(state) : "";
    if (refused) {
      this.#withdraw(refused);
      return;
    }
    if (this.#wanted === key) return;
    this.#wanted = key;
    const drawing = this.#moving;
    const task = async (/** @type {AbortSignal} */ signal) => {
      try {
        if (state.query) await this.#search(state, state.query, key, signal);
        else await this.#browse(state, key, signal);
        this.#controls.explain("", "");
        this.#notices.clear(true);
      } catch (error) {
        if (isAbort(error)) return;
        if (this.#wanted === key) this.#wanted = "";
        this.#failed(error, state);
      } finally {
        if (this.#wanted === key || this.#wanted === "") this.#results.setBusy(false);
      }
    };
    this.#results.setBusy(true);
    this.#searching.ask(task, drawing ? 40 : 0, drawing ? 400 : 0);
  }

  /**
   * Nothing is asked for: what is shown is of the query before.
   * @param {string} why
   */
  #withdraw(why) {
    this.#searching.cancel();
    this.#wanted = "";
    this.#results.setBusy(false);
    this.#results.outdate(why);
    this.#mark(null);
  }

  /**
   * Mark the query of an answer and its neighbours on the map. Without an answer nothing is marked.
   * @param {Marked | null} marks
   */
  #mark(marks) {
    if (!marks) {
      this.#marking.cancel();
      this.#map.unmark();
      return;
    }
    const { set, ids, id } = marks;
    this.#marking.ask((signal) => this.#map.mark(set, ids, id, signal).catch((error) => this.#failed(error)));
  }

  #wanted = "";
  #moving = false;

  /**
   * @param {State} state
   * @param {Query} query
   * @param {string} key
   * @param {AbortSignal} signal
   */
  async #search(state, query, key, signal) {
    const info = this.#opened();
    const { id, points, weights } = querySet(query, this.#usual, this.#fits());
    const given = points ? { queries: points, weights } : { id };
    /** @type {SearchAnswer} */
    const answer = await ask(`indexes/${encodeURIComponent(info.name)}/search`, {
      body: {
        ...given,
        k: state.k,
        where: state.where || null,
        recall: state.recall ? Number(state.recall) : null,
        rerank: state.rerank || null,
        certify: state.certify,
        match: state.match,
      },
      signal,
    });
    const { ids } = answer.hits;
    const clouds = await this.#clouds.get(ids, signal);
    if (this.#wanted !== key && !this.#moving) return;
    const items = this.#results.showHits(answer, clouds, info, state);
    const marks = { set: { queries: points, weights }, id, ids };
    this.#answer = { key, items, kind: answer.distance_kind, marks };
    if (this.#session.state.open) this.#explain();
    this.#mark(marks);
  }

  /**
   * @param {State} state
   * @param {string} key
   * @param {AbortSignal} signal
   */
  async #browse(state, key, signal) {
    const info = this.#opened();
    /** @type {SetPage} */
    const page = await ask(`indexes/${encodeURIComponent(info.name)}/sets`, {
      parameters: { where: state.where || null, limit: PAGE, offset: state.offset },
      signal,
    });
    const ids = page.sets.map((set) => set.id);
    const clouds = await this.#clouds.get(ids, signal);
    if (this.#wanted !== key) return;
    this.#answer = { key, items: this.#results.showPage(page, clouds, info, state), kind: "", marks: null };
    this.#mark(null);
  }

  /** The sets of the answer to what is asked for, not to another query. */
  get #items() {
    return this.#answer?.key === this.#wanted ? this.#answer.items : [];
  }

  #explain() {
    const { open: id, query, match } = this.#session.state;
    if (!query) return;
    this.#match.show({
      index: this.#opened().name,
      id,
      queryName: queryName(query),
      query: querySet(query, this.#usual, this.#fits()),
      match,
      items: this.#items,
      kind: this.#answer?.kind ?? "",
      metadata: this.#clouds.peek(id)?.metadata ?? {},
    });
  }

  /**
   * @param {Partial<State>} change
   * @param {Way} way
   * @param {boolean} shows whether something else than the address changes
   */
  #change(change, way, shows = true) {
    this.#typed = false;
    this.#session.change({ index: this.#info?.name ?? this.#session.state.index, ...change }, way);
    if (shows) void this.refresh();
  }

  /**
   * @param {number[][]} strokes
   * @param {boolean} moving
   */
  #drawn(strokes, moving) {
    const copy = strokes.map((stroke) => [...stroke]);
    const query = copy.length ? /** @type {Query} */ ({ kind: "drawn", strokes: copy }) : null;
    const first = this.#session.state.query?.kind !== "drawn";
    this.#moving = moving;
    if (moving && !first) {
      this.#session.state = { ...this.#session.state, query }; // the address follows when the stroke ends
      this.#showQuery(this.#session.state);
      this.#find();
    } else {
      this.#change({ query, open: "" }, first ? "push" : "replace");
    }
  }

  /** @param {Item} item */
  #chosen(item) {
    if (this.#session.state.query) this.#change({ open: item.id }, "push");
    else this.#searchFrom(item.id);
  }

  /** @param {string} id */
  #searchFrom(id) {
    const within = byId("match-dialog", HTMLDialogElement).open;
    this.#change({ query: { kind: "stored", id }, open: "", offset: 0 }, "push");
    if (within) this.#results.focus();
    window.scrollTo({ top: 0 });
  }

  /** @param {number} by */
  #step(by) {
    const items = this.#items;
    const next = items[items.findIndex((item) => item.id === this.#session.state.open) + by];
    if (next) this.#change({ open: next.id }, "replace");
  }

  #closeMatch() {
    const { open } = this.#session.state;
    this.#match.hide();
    if (this.#session.opened) window.history.back();
    else this.#change({ open: "" }, "replace");
    this.#results.cards.focus(open);
  }

  /**
   * @param {unknown} error
   * @param {State} [state] the state of a search that failed
   */
  #failed(error, state) {
    if (isAbort(error)) return;
    if (state) this.#mark(null);
    const problem = error instanceof Problem ? error : new Problem("server", String(error));
    if (state && problem.status === 404) {
      this.#answer = null;
      this.#results.say(problem.message);
      return;
    }
    if (state && problem.kind === "request") {
      const { message, argument } = refusal(problem);
      const about = argument || (state.where && !state.query ? "where" : "");
      this.#results.outdate(message);
      if (about) this.#controls.explain(message, about);
      else this.#notices.show(new Problem("request", message));
      return;
    }
    if (state) this.#results.outdate(problem.message);
    this.#notices.show(problem);
  }
}

const app = new App();
void app.start();
