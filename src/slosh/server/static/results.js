/** The list in the middle: the nearest sets of a query, or a page of all sets; what was promised; what is missing. */

import { Cards } from "./cards.js";
import { frameOf } from "./cloud.js";
import { byId, element, fill } from "./dom.js";
import { count, counted, distance, distanceKind, duration, percent, promise, summary } from "./text.js";

/** @import {Cloud, Frame, IndexInfo, SearchAnswer, SetPage, State, Stats, StoredCloud} from "./types.d.ts" */
/** @import {Item} from "./cards.js" */

export const PAGE = 24;
/** Sets on a page, while there is no query. */

export class Results {
  #title = byId("results-title", HTMLElement);
  #status = byId("status", HTMLElement);
  #pages = byId("pages", HTMLElement);
  #message = byId("message", HTMLElement);
  #panel = byId("results", HTMLElement);
  #list = byId("cards", HTMLOListElement);
  #outdated = byId("outdated", HTMLElement);
  #caution = byId("caution", HTMLElement);
  #whyCaution = element("p");
  /** Stays open or closed while someone draws, and every answer is of an unusual query. */
  #unusual = element("details", {}, element("summary", {}, "An unusual query: fewer may be found"), this.#whyCaution);

  /**
   * @param {(item: Item) => void} onChoose
   * @param {(item: Item) => string} colourOf the colour of a set on the map, or ""
   * @param {(offset: number) => void} onPage
   */
  constructor(onChoose, colourOf, onPage) {
    this.cards = new Cards(this.#list, onChoose, colourOf);
    this.onPage = onPage;
  }

  /** @param {boolean} busy */
  setBusy(busy) {
    this.#list.classList.toggle("waiting", busy);
    this.#panel.setAttribute("aria-busy", String(busy));
  }

  /**
   * What was asked for last has no answer: what is shown is that of the query before, and looks like it.
   * @param {string} why
   */
  outdate(why) {
    fill(this.#caution);
    if (this.cards.ids.length === 0) {
      this.#title.textContent = "No answer";
      this.#status.textContent = "";
      this.#pages.hidden = true;
      this.#message.hidden = false;
      fill(this.#message, element("h3", {}, "This could not be searched"), element("p", {}, why));
      return;
    }
    this.#list.classList.add("old");
    this.#outdated.textContent = "These are the sets of the query before: the new one has no answer.";
  }

  /** What is shown is what was asked for. */
  validate() {
    this.#list.classList.remove("old");
    this.#outdated.textContent = "";
  }

  /** Show nothing: another index is opened. */
  clear() {
    this.validate();
    this.cards.show([], () => "");
    fill(this.#caution);
    this.#title.textContent = "Sets";
    this.#status.textContent = "";
    this.#pages.hidden = true;
    this.#message.hidden = true;
  }

  /**
   * Show nothing but a sentence: what is searched for is not there.
   * @param {string} message
   */
  say(message) {
    this.clear();
    this.#message.hidden = false;
    fill(this.#message, element("h3", {}, message), element("p", {}, "Clear the query to see all sets."));
  }

  focus() {
    this.#panel.focus({ preventScroll: true });
  }

  /**
   * A recall was measured with stored sets. Say so of a query that is farther from all of them than they usually are
   * from each other. An exact answer is right whatever was asked, and where nothing is promised nothing can be broken.
   * @param {Stats} stats
   */
  #warn({ recall, unlike }) {
    const unsure = recall !== null && recall < 1 && unlike?.[0] === true;
    if (unsure) {
      this.#whyCaution.textContent = `Hardly any stored set is as far from its nearest neighbour as this query is. The ${percent(recall)} was measured with stored sets as queries, and may not hold for it. To be certain, choose the recall “exact” under “How to search”.`;
    }
    fill(this.#caution, unsure && this.#unusual);
  }

  /**
   * @param {SearchAnswer} answer
   * @param {Map<string, StoredCloud>} clouds
   * @param {IndexInfo} info
   * @param {State} state
   * @returns {Item[]}
   */
  showHits(answer, clouds, info, state) {
    this.validate();
    const { ids, distances, metadata } = answer.hits;
    const items = ids.map((id, i) => ({ id, distance: distances[i], metadata: metadata[i] ?? {} }));
    this.cards.show(items, (item) => {
      const rank = ids.indexOf(item.id) + 1;
      return `${item.id}, neighbour ${rank}, distance ${distance(item.distance)}, ${summary(item.metadata)}. Compare`;
    });
    this.cards.showClouds(clouds, sharedFrame(info, [...clouds.values()]));
    this.cards.mark(state.open);
    this.#title.textContent = info.sets ? "Nearest sets" : "No sets yet";
    this.#pages.hidden = true;
    this.#sayEmpty(items.length, info, state);
    const parts = [
      `${count(items.length)} of ${counted(info.sets, "set")}`,
      duration(answer.stats.seconds),
      distanceKind(answer.distance_kind),
      promise(answer.stats, state.certify, info.sets),
    ];
    this.#status.textContent = info.sets ? parts.join(" · ") : "";
    this.#warn(answer.stats);
    return items;
  }

  /**
   * @param {SetPage} page
   * @param {Map<string, StoredCloud>} clouds
   * @param {IndexInfo} info
   * @param {State} state
   * @returns {Item[]}
   */
  showPage(page, clouds, info, state) {
    this.validate();
    const items = page.sets.map(({ id, metadata }) => ({ id, metadata, distance: null }));
    this.cards.show(items, (item) => `${item.id}, ${summary(item.metadata)}. Search from here`);
    this.cards.showClouds(clouds, sharedFrame(info, [...clouds.values()]));
    fill(this.#caution);
    this.#title.textContent = !info.sets ? "No sets yet" : state.where ? "Sets that match" : "All sets";
    const range = `${count(state.offset + 1)} to ${count(state.offset + items.length)} of ${count(page.total)}`;
    this.#status.textContent = items.length ? `${range} · choose one to search from it` : "";
    this.#sayEmpty(items.length, info, state);
    this.#showPages(state.offset, page);
    return items;
  }

  /**
   * @param {number} offset
   * @param {SetPage} page
   */
  #showPages(offset, page) {
    this.#pages.hidden = offset === 0 && page.next === null;
    const go = (/** @type {number} */ to) => () => {
      this.onPage(Math.max(0, to));
      this.focus();
    };
    const back = { type: "button", class: "outline", disabled: offset === 0, onclick: go(offset - PAGE) };
    const on = { type: "button", class: "outline", disabled: page.next === null, onclick: go(page.next ?? 0) };
    fill(
      this.#pages,
      element("button", back, "Previous"),
      element("span", {}, `Page ${count(Math.floor(offset / PAGE) + 1)} of ${count(Math.ceil(page.total / PAGE))}`),
      element("button", on, "Next"),
    );
  }

  /**
   * Nothing is shown: say why.
   * @param {number} shown
   * @param {IndexInfo} info
   * @param {State} state
   */
  #sayEmpty(shown, info, state) {
    this.#message.hidden = shown > 0;
    if (shown > 0) fill(this.#message);
    else if (info.sets === 0) {
      fill(this.#message, element("h3", {}, "This index is empty"), howToAdd(info));
    } else if (info.sets === 1 && state.query?.kind === "stored" && state.query.id && !state.where) {
      const hint = element("p", {}, "It has this set only, and a set is not its own neighbour.");
      fill(this.#message, element("h3", {}, "There is no other set in this index"), hint);
    } else if (state.where) {
      const hint = element("p", {}, "Change it, or clear it to see all sets.");
      fill(this.#message, element("h3", {}, "No set matches the filter"), hint);
    } else fill(this.#message, element("h3", {}, "Nothing was found"));
  }
}

/**
 * How sets come into an index: through the server, which is the only one that may write to it while it runs.
 * @param {IndexInfo} info
 */
function howToAdd({ name, read_only, keys }) {
  if (read_only) {
    return [element("p", {}, "This server only shows it. Whoever runs the server can add sets where it is stored.")];
  }
  const server = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const inAddress = encodeURIComponent(name).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
  const shell = `slosh add ${server}#${inAddress} FILES`;
  const python = `index = slosh.open(${JSON.stringify(server)}, ${JSON.stringify(name)})\nindex.add(sets)`;
  const key = " Both take your key from the environment variable SLOSH_API_KEY.";
  return [
    element("p", {}, `Add files to it from a shell, or sets from Python, and load this page again.${keys ? key : ""}`),
    element("pre", { tabindex: "0" }, `${shell}\n\n${python}`),
  ];
}

/**
 * The frame that pictures share, so that places and sizes can be compared; null where the index moves or scales sets.
 * @param {IndexInfo} info
 * @param {Cloud[]} clouds
 * @returns {Frame | null}
 */
function sharedFrame(info, clouds) {
  if (/center|scale|align/.test(info.preprocess) || !clouds.length) return null;
  return frameOf(clouds.map((cloud) => cloud.points));
}
