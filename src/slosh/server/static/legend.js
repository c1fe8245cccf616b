/** What the colours of the map mean. A click on a value shows only the sets that have it. */

import { byId, element, fill } from "./dom.js";
import { count, plain } from "./text.js";

/** @import {Palette} from "./palette.js" */

export class Legend {
  #list = byId("legend", HTMLUListElement);

  /** @param {() => void} onChange the emphasised value has changed */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /** @param {Palette} palette */
  show(palette) {
    const { field } = palette;
    if (!field) {
      fill(this.#list);
      return;
    }
    if (palette.ramp) {
      const bar = element("span", { class: "bar" });
      fill(this.#list, element("li", { class: "ramp" }, plain(field.least), bar, plain(field.greatest)));
      return;
    }
    const rows = palette.values.map((value) => {
      const chip = element("span", { class: "chip" });
      chip.style.backgroundColor = palette.css(value);
      const pressed = palette.emphasis === value;
      const onclick = () => {
        palette.emphasis = palette.emphasis === value ? null : value;
        this.show(palette);
        this.onChange();
      };
      const properties = { type: "button", "aria-pressed": String(pressed), onclick, "data-value": plain(value) };
      return element("li", {}, element("button", properties, chip, element("span", { class: "value" }, plain(value))));
    });
    const rest = field.distinct - palette.values.length;
    if (rest > 0) rows.push(element("li", {}, `and ${count(rest)} more`));
    const focused = document.activeElement?.getAttribute("data-value");
    fill(this.#list, rows);
    const again = focused && [...this.#list.querySelectorAll("button")].find((each) => each.dataset.value === focused);
    if (again) again.focus();
  }
}
