// What the pages say, in the language chosen. The names of decisions are those of the chat page.

import { choose as chooseNames, felt, nameOf } from "../words.js";
import { STRINGS } from "./strings.js";

const LANGUAGES = ["en", "zh"];
const KEY = "compeer.workbench.language";
let spoken = "en";

/** Chooses the language of the page; one that the page does not know becomes English. */
export function choose(language) {
  spoken = LANGUAGES.includes(language) ? language : "en";
  chooseNames(spoken);
  return spoken;
}

/** The words for a key ("tasks.steps" looks inside), with {places} filled in. */
export function say(key, places = {}) {
  const pair = key.split(".").reduce((words, part) => words?.[part], STRINGS);
  const found = pair?.[LANGUAGES.indexOf(spoken)] ?? key.split(".").at(-1);
  return found.replace(/\{(\w+)\}/g, (whole, name) => (name in places ? String(places[name]) : whole));
}

/** What a step decided, in words. */
export function decided(decisions) {
  if (decisions.emotion) return felt(decisions);
  return Object.entries(decisions).map(([field, value]) => nameOf(field, value)).join(", ");
}

/** A number with as many digits, and a time, as the language writes them. */
export const number = (value, digits = 0) => value.toLocaleString(spoken, { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const moment = (at) => new Date(at).toLocaleString(spoken === "en" ? "en-GB" : spoken, { dateStyle: "short", timeStyle: "short" });

/** Puts the words where the page has places for them, and listens to the choice of a language; `draw` draws the rest. */
export function speak(draw) {
  const select = document.getElementById("language");
  const words = () => {
    document.documentElement.lang = spoken;
    for (const element of document.querySelectorAll("[data-words]")) element.textContent = say(element.dataset.words);
  };
  select.value = choose(localStorage.getItem(KEY) ?? navigator.language.slice(0, 2));
  words();
  select.addEventListener("change", () => {
    localStorage.setItem(KEY, choose(select.value));
    words();
    draw();
  });
}

/** Names of questions in the order in which they are asked. */
export const inOrder = (names) => Object.keys(STRINGS.questions).filter((name) => names.includes(name));
