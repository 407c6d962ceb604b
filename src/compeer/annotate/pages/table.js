// Tables and forms of the admin's views.

import { make } from "../parts.js";
import { say } from "./words.js";

/** A table with a caption; cells are text or elements, numbers stand right. Without rows it says so. */
export function table(caption, heads, rows) {
  const cell = (value, index) => {
    const content = value ?? "–";
    const numeric = typeof content === "string" && /^[[\]\d.,:%\s−-]+$/.test(content);
    return make(index ? "td" : "th", { class: numeric ? "number" : null, scope: index ? null : "row" }, content);
  };
  if (!rows.length) return make("section", { class: "card" }, make("h3", { text: caption }), make("p", { class: "soft", text: say("none_yet") }));
  return make("section", { class: "card" }, make("div", { class: "wide" }, make("table", {}, make("caption", { text: caption }),
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col", text: head })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))))));
}

let fields = 0;

/** A labelled field around an input, select or textarea. */
export function field(label, input, hint) {
  fields += 1;
  input.id ||= `field-${fields}`;
  return make("div", { class: "field" }, make("label", { for: input.id, text: label }), input, hint ? make("p", { class: "soft", text: hint }) : null);
}

/** A select of values with their words. */
export function select(values, words, chosen) {
  return make("select", {}, ...values.map((value) => make("option", { value, text: words(value), selected: value === chosen })));
}

/** A card with a form; `act` is called with nothing, and the button waits for it. */
export function formCard(title, button, act, ...parts) {
  const submit = make("button", { type: "submit", class: "send", text: button });
  const form = make("form", { class: "card" }, make("h3", { text: title }), ...parts, make("div", { class: "buttons" }, submit));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    await act();
    submit.disabled = false;
  });
  return form;
}
