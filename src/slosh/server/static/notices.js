/** What the page says when something is missing or wrong: no index, no sets, no key, no server. */

import { ask, storedKey, storeKey } from "./api.js";
import { byId, element, fill } from "./dom.js";

/** @import {Problem} from "./api.js" */

const AGAIN = 2000;
/** Milliseconds between two questions whether the server is back. */

export class Notices {
  #bar = byId("notice", HTMLElement);
  #keyDialog = byId("key-dialog", HTMLDialogElement);
  #key = byId("key", HTMLInputElement);
  #timer = 0;
  #aboutServer = false;

  /** @param {() => void} onRetry start again: the server is back, or there is a key */
  constructor(onRetry) {
    this.onRetry = onRetry;
    byId("key-form", HTMLFormElement).addEventListener("submit", () => {
      storeKey(this.#key.value.trim());
      this.#key.value = "";
      onRetry();
    });
    this.#keyDialog.addEventListener("cancel", (event) => event.preventDefault());
  }

  /**
   * Take the notice away.
   * @param {boolean} answered only if it was about the server, which has answered now
   */
  clear(answered = false) {
    if (answered && !this.#aboutServer) return;
    window.clearTimeout(this.#timer);
    this.#bar.hidden = true;
    fill(this.#bar);
  }

  /** Something else is shown from now on: take away what was about the page before, but not what is about the server. */
  leave() {
    if (!this.#aboutServer) this.clear();
  }

  /** @param {Problem} problem */
  show(problem) {
    window.clearTimeout(this.#timer);
    this.#aboutServer = problem.kind === "gone" || problem.kind === "busy";
    if (problem.kind === "key") {
      this.askForKey();
      return;
    }
    if (problem.kind === "gone") {
      this.#tell(`${problem.message} This page goes on when it is back.`, "Try now", () => this.onRetry());
      this.#waitForServer();
      return;
    }
    if (problem.kind === "busy") {
      const seconds = Math.max(1, problem.retry);
      this.#tell(`${problem.message} Trying again in ${seconds} s.`, "Try now", () => this.onRetry());
      this.#timer = window.setTimeout(() => this.onRetry(), 1000 * seconds);
      return;
    }
    if (problem.kind === "forbidden") {
      this.#tell(problem.message, storedKey() ? "Use another key" : "Give a key", () => this.askForKey());
      return;
    }
    this.#tell(problem.message, "Dismiss", () => this.clear());
  }

  /** The address names a query that only the tab that made it has. */
  lostQuery() {
    this.#aboutServer = false;
    this.#tell(
      "The query of this address was too long to be written into it. Drop its file or paste its numbers again.",
      "Dismiss",
      () => this.clear(),
    );
  }

  /**
   * A part of the address is broken.
   * @param {string[]} parts
   */
  unread(parts) {
    const [last, ...others] = [...parts].reverse();
    const named = others.length ? `${others.reverse().join(", ")} and ${last}` : last;
    this.#aboutServer = false;
    this.#tell(`This address is damaged: ${named} could not be read. Everything else is as it says.`, "Dismiss", () =>
      this.clear(),
    );
  }

  askForKey() {
    const wrong = storedKey() !== "";
    storeKey("");
    byId("key-error", HTMLElement).textContent = wrong
      ? "The server does not know this key. Check it, and try again."
      : "";
    this.#key.setAttribute("aria-invalid", String(wrong));
    if (!this.#keyDialog.open) this.#keyDialog.showModal();
    this.#key.focus();
  }

  noIndex() {
    this.#aboutServer = false;
    this.#tell(
      "This server has no index yet. Create one with: slosh build NAME.slosh FILES, in the folder that it serves.",
      "Look again",
      () => this.onRetry(),
    );
  }

  /**
   * @param {string} name
   * @param {string[]} names
   */
  unknownIndex(name, names) {
    this.#aboutServer = false;
    const others = names.length ? ` There are: ${names.slice(0, 8).join(", ")}.` : "";
    this.#tell(`There is no index “${name}” here.${others}`, names.length ? `Open ${names[0]}` : "Look again", () => {
      window.location.hash = names.length ? `#index=${encodeURIComponent(names[0])}` : "#";
      this.onRetry();
    });
  }

  /**
   * @param {string} text
   * @param {string} label
   * @param {() => void} act
   */
  #tell(text, label, act) {
    if (this.#bar.querySelector("p")?.textContent === text) return;
    fill(this.#bar, element("p", {}, text), element("button", { type: "button", onclick: act }, label));
    this.#bar.hidden = false;
  }

  #waitForServer() {
    this.#timer = window.setTimeout(async () => {
      try {
        await ask("server");
        this.onRetry();
      } catch {
        if (!this.#bar.hidden) this.#waitForServer();
      }
    }, AGAIN);
  }
}
