/** Queries from outside: numbers that are pasted, files that are dropped or chosen. */

import { ask, Problem } from "./api.js";
import { byId, element, fill, icon } from "./dom.js";
import { fileError, parseNumbers, TEXT_FORMATS, textOfOneSet } from "./numbers.js";
import { unreadable } from "./refusals.js";
import { counted } from "./text.js";

/** @import {IndexInfo, ParseAnswer, Query} from "./types.d.ts" */

const MOST_SETS = 100;
/** Of a file with many sets, the first so many can be leafed through. */

export class QueryInput {
  #info = /** @type {IndexInfo | null} */ (null);
  #file = /** @type {{name: string, answer: ParseAnswer, at: number} | null} */ (null);
  #dialog = byId("paste-dialog", HTMLDialogElement);
  #numbers = byId("numbers", HTMLTextAreaElement);
  #told = byId("paste-told", HTMLElement);
  #search = byId("paste-search", HTMLButtonElement);
  #chooser = byId("file", HTMLInputElement);
  #leaf = byId("of-file", HTMLElement);

  /**
   * @param {(query: Query) => void} onQuery
   * @param {(error: unknown) => void} onError
   * @param {(reading: boolean) => void} onBusy
   */
  constructor(onQuery, onError, onBusy) {
    this.onQuery = onQuery;
    this.onError = onError;
    this.onBusy = onBusy;
    byId("paste", HTMLButtonElement).addEventListener("click", () => this.#open(""));
    byId("paste-cancel", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    byId("paste-form", HTMLFormElement).addEventListener("submit", () => this.#take());
    this.#numbers.addEventListener("input", () => this.#check());
    this.#numbers.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !this.#search.disabled) this.#search.click();
    });
    byId("choose", HTMLButtonElement).addEventListener("click", () => this.#chooser.click());
    this.#chooser.addEventListener("change", () => {
      const file = this.#chooser.files?.[0];
      if (file) void this.read(file);
      this.#chooser.value = "";
    });
    this.#listenForDrops();
    window.addEventListener("paste", (event) => this.#pasted(event));
  }

  /**
   * @param {IndexInfo} info
   * @param {string[]} formats
   */
  setIndex(info, formats) {
    this.#info = info;
    this.#chooser.accept = [...new Set([...formats, ...TEXT_FORMATS])].join(",");
    this.forgetFile();
    const each = counted(info.dim, "number");
    const weight = info.weighted ? ", and its weight behind them if it has one" : "";
    byId("paste-about", HTMLElement).textContent =
      `One point on each line: ${each}${weight}. Or JSON, or cells of a spreadsheet.`;
  }

  /** No index is shown: files and numbers are not taken. */
  forgetIndex() {
    this.#info = null;
    this.forgetFile();
  }

  /** The query is no longer from a file. */
  forgetFile() {
    this.#file = null;
    this.#leaf.hidden = true;
  }

  /** @param {File} file */
  async read(file) {
    if (!this.#info) return;
    this.onBusy(true);
    try {
      const answer = await this.#setsOf(file, this.#info);
      this.#file = { name: file.name, answer, at: 0 };
      this.onBusy(false);
      this.#show();
    } catch (error) {
      this.onBusy(false);
      this.onError(unreadable(error, file.name));
    }
  }

  /**
   * @param {File} file
   * @param {IndexInfo} info
   * @returns {Promise<ParseAnswer>}
   */
  async #setsOf(file, info) {
    const text = await textOfOneSet(file);
    if (text === null)
      return await ask(`indexes/${encodeURIComponent(info.name)}/parse`, {
        bytes: file,
        parameters: { filename: file.name, limit: MOST_SETS },
      });
    const found = parseNumbers(text, info.dim, info.weighted);
    if ("error" in found) throw new Problem("request", fileError(file.name, found.error));
    return { total: 1, sets: [{ id: file.name, ...found, metadata: {} }] };
  }

  #show() {
    if (!this.#file) return;
    const { name, answer, at } = this.#file;
    const set = answer.sets[at];
    if (!set) return;
    const several = answer.sets.length > 1;
    this.#leaf.hidden = !several;
    if (several) {
      const of = answer.total > answer.sets.length ? `${answer.sets.length}, of ${answer.total}` : String(answer.total);
      const step = (/** @type {number} */ by) => () => {
        if (!this.#file) return;
        this.#file.at += by;
        this.#show();
        const again = this.#leaf.querySelectorAll("button")[by < 0 ? 0 : 1];
        if (!again.disabled) again.focus();
      };
      fill(
        this.#leaf,
        element("span", { title: name }, `Set ${at + 1} of ${of} in ${name}`),
        element(
          "button",
          {
            type: "button",
            class: "quiet square",
            "aria-label": "Previous set of the file",
            disabled: at === 0,
            onclick: step(-1),
          },
          icon("left"),
        ),
        element(
          "button",
          {
            type: "button",
            class: "quiet square",
            "aria-label": "Next set of the file",
            disabled: at + 1 === answer.sets.length,
            onclick: step(1),
          },
          icon("right"),
        ),
      );
    }
    this.onQuery({ kind: "given", points: set.points, weights: set.weights, name: several ? set.id : name });
  }

  /** @param {string} text */
  #open(text) {
    this.#numbers.value = text;
    this.#check();
    this.#dialog.showModal();
    this.#numbers.focus();
  }

  #parsed() {
    if (!this.#info) return { error: "" };
    return parseNumbers(this.#numbers.value, this.#info.dim, this.#info.weighted);
  }

  #check() {
    const found = this.#parsed();
    const wrong = "error" in found;
    this.#search.disabled = wrong;
    this.#told.classList.toggle("wrong", wrong);
    this.#told.textContent = wrong
      ? found.error
      : `${counted(found.points.length, "point")}${found.weights ? " with weights" : ""}.`;
  }

  #take() {
    const found = this.#parsed();
    if ("error" in found) return;
    this.forgetFile();
    this.onQuery({ kind: "given", ...found, name: "" });
  }

  /** @param {ClipboardEvent} event */
  #pasted(event) {
    const { target } = event;
    if (target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || !this.#info) return;
    if (document.querySelector("dialog[open]")) return;
    const file = event.clipboardData?.files[0];
    if (file) {
      event.preventDefault();
      void this.read(file);
      return;
    }
    const text = event.clipboardData?.getData("text") ?? "";
    if (/\d/.test(text)) {
      event.preventDefault();
      this.#open(text);
    }
  }

  #listenForDrops() {
    const veil = byId("drop", HTMLElement);
    let depth = 0;
    const holdsFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
    window.addEventListener("dragenter", (event) => {
      if (!holdsFiles(event)) return;
      depth += 1;
      veil.hidden = !this.#info;
    });
    window.addEventListener("dragleave", (event) => {
      if (!holdsFiles(event)) return;
      depth = Math.max(0, depth - 1);
      veil.hidden = depth === 0;
    });
    window.addEventListener("dragover", (event) => {
      if (holdsFiles(event)) event.preventDefault();
    });
    window.addEventListener("drop", (event) => {
      depth = 0;
      veil.hidden = true;
      const file = event.dataTransfer?.files[0];
      if (!file) return;
      event.preventDefault();
      void this.read(file);
    });
  }
}
