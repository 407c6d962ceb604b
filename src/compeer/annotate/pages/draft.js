// Answers that are not submitted yet. They are kept in this browser at once, and on the server a moment later, so that
// a reload, another device or a lost connection costs nothing.

import { Failure, call } from "./server.js";

const KEY = "compeer.workbench.draft";
const AUTOSAVE = 700, AGAIN = 3000;

let timer = null, stop = null;

/** What is kept here of somebody's item: its answers, remark and seconds; null where nothing is. */
export function kept(person, item) {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return found?.item === item && found.person === person ? found : null;
  } catch {
    return null;
  }
}

/** Keeps a draft in this browser. */
export function keep(draft) {
  try {
    localStorage.setItem(KEY, JSON.stringify(draft));
  } catch {
    // No room: the server keeps the answers as well.
  }
}

/** Saves answers on the server soon; `tell` hears how it went: "online", "offline", "login", or "lost" for good. */
export function saveSoon(item, answers, guidelines, tell, wait = AUTOSAVE) {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    stop = new AbortController();
    const { signal } = stop;
    try {
      await call("PUT", `/api/items/${item}/labels`, { answers, seconds: 0, guidelines, note: "", final: false }, signal);
      tell("online");
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (signal.aborted) return;
      tell(error.kind === "refused" ? "lost" : error.kind);
      if (error.kind === "offline") saveSoon(item, answers, guidelines, tell, AGAIN);
    }
  }, wait);
}

/** Forgets the draft: the item is submitted, or given back. */
export function drop() {
  clearTimeout(timer);
  stop?.abort();
  localStorage.removeItem(KEY);
}
