/** The button that changes between the system's colours, light, and dark. */

import { fill, icon } from "./dom.js";

const CHOICES = ["auto", "light", "dark"];
/** @type {Record<string, string>} */
const NAMES = { auto: "Colours of the system", light: "Light", dark: "Dark" };

function stored() {
  try {
    return localStorage.getItem("slosh-theme") ?? "auto";
  } catch {
    return "auto";
  }
}

/** @param {HTMLButtonElement} button */
export function themeButton(button) {
  let choice = CHOICES.includes(stored()) ? stored() : "auto";
  const show = () => {
    fill(button, icon(choice));
    button.title = NAMES[choice];
    button.setAttribute("aria-label", `Colours: ${NAMES[choice]}. Change`);
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      if (choice === "auto") localStorage.removeItem("slosh-theme");
      else localStorage.setItem("slosh-theme", choice);
    } catch {
      // Storage may be forbidden: then the choice cannot be kept, and the system decides.
    }
    window.dispatchEvent(new Event("slosh-theme-choice"));
    show();
  });
  show();
}
