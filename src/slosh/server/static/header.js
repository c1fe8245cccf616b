/** The head of the page: which index is shown, what it holds, and by which fields its map can be coloured. */

import { byId, element, fill } from "./dom.js";
import { colourable } from "./palette.js";
import { counted } from "./text.js";

/** @import {Field, IndexInfo, IndexSummary} from "./types.d.ts" */

/**
 * @param {IndexInfo} info
 * @param {IndexSummary[]} indexes all that are served
 * @param {Field[]} fields
 * @param {boolean} projected whether pictures show principal components
 */
export function showHeader(info, indexes, fields, projected) {
  const select = byId("index", HTMLSelectElement);
  const names = indexes.map((each) => each.name);
  if (!names.includes(info.name)) names.push(info.name);
  fill(
    select,
    names.map((name) => element("option", { value: name }, name)),
  );
  select.value = info.name;
  select.closest("label")?.classList.toggle("single", names.length === 1);
  const shown = projected ? ", drawn by three principal components" : "";
  const about = `${counted(info.sets, "set")} in ${counted(info.dim, "dimension")}${shown}`;
  byId("about", HTMLElement).textContent = about;
  const choices = fields.filter(colourable);
  byId("colour-row", HTMLElement).hidden = choices.length === 0;
  const options = choices.map((field) => element("option", { value: field.name }, field.name));
  fill(byId("colour", HTMLSelectElement), options, element("option", { value: "-" }, "none"));
}
