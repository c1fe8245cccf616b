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
  const names = indexes.map((each) => each.name);
  if (!names.includes(info.name)) names.push(info.name);
  offerIndexes(names, info.name);
  byId("index", HTMLSelectElement)
    .closest("label")
    ?.classList.toggle("single", names.length === 1);
  const shown = projected ? ", drawn by three principal components" : "";
  const about = `${counted(info.sets, "set")} in ${counted(info.dim, "dimension")}${shown}`;
  byId("about", HTMLElement).textContent = about;
  const choices = fields.filter(colourable);
  byId("colour-row", HTMLElement).hidden = choices.length === 0;
  const options = choices.map((field) => element("option", { value: field.name }, field.name));
  fill(byId("colour", HTMLSelectElement), options, element("option", { value: "-" }, "none"));
}

/**
 * No index is shown: let people choose one.
 * @param {IndexSummary[]} indexes all that are served
 */
export function showNoHeader(indexes) {
  offerIndexes(
    indexes.map((each) => each.name),
    null,
  );
  byId("index", HTMLSelectElement).closest("label")?.classList.remove("single");
  byId("about", HTMLElement).textContent = "";
}

/**
 * @param {string[]} names
 * @param {string | null} chosen
 */
function offerIndexes(names, chosen) {
  const select = byId("index", HTMLSelectElement);
  fill(
    select,
    chosen === null && element("option", { value: "", disabled: true }, "Choose an index"),
    names.map((name) => element("option", { value: name }, name)),
  );
  select.value = chosen ?? "";
}
