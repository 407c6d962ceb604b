// The keys of the annotation page. Single keys can be switched off (in the help), for those whose voice or screen
// reader types them; then everything is still reached by Tab, and Enter submits.

import { KEYS_OFF, help, pause } from "./dialogs.js";
import { guideCovers, toggleGuide } from "./guide.js";

const WRITES = "textarea, select, input:not([type=radio]):not([type=checkbox])";
const ACTS = "button, a, input, summary, audio, video";

/** `current()` is the item that is shown, `busy()` whether it is on its way; the others are what keys do with it. */
export function startKeys({ current, busy, undo, passOn, decline, back }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || document.querySelector("dialog[open]")) return;
    const view = current()?.view;
    if (event.target.matches(WRITES)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "Escape") return guideCovers() ? toggleGuide(false) : back();
    // A key that is held down must not answer the next question, nor one that comes too late the next item.
    if (busy() || (event.repeat && !/^(Arrow|Page)/.test(event.key))) return;
    if (event.key === "Enter" && view && !event.target.matches(ACTS)) return done(event, () => view.form.requestSubmit());
    if (localStorage.getItem(KEYS_OFF)) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const always = { "?": help, p: pause, g: () => toggleGuide(), u: undo };
    if (key in always) return done(event, always[key]);
    if (!view) return;
    if (view.press(key)) return event.preventDefault();
    const moves = !event.target.matches("input, .said, .guide-text");
    const page = (by) => view.said.scrollBy({ top: by * view.said.clientHeight * 0.8 });
    const own = {
      s: () => passOn("skip"), x: () => passOn("flag"), d: decline, c: () => view.remark.focus(), Backspace: () => view.clear(),
      PageUp: () => page(-1), PageDown: () => page(1), ...(moves ? { ArrowUp: () => view.move(-1), ArrowDown: () => view.move(1) } : {}),
    };
    if (key in own) done(event, own[key]);
  });
}

function done(event, act) {
  event.preventDefault();
  act();
}
