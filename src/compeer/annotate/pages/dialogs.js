// The dialogs of the annotation page: help and one's own settings, reasons for skipping and flagging, the pause.

import { make } from "../parts.js";
import { Failure, call } from "./server.js";
import { begin, leaveTo } from "./session.js";
import { say } from "./words.js";

export const KEYS_OFF = "compeer.workbench.keys-off";
const KEYS = [
  ["0 … 4", "digits"], ["t f", "letters"], ["↑ ↓", "arrows"], ["⏎", "enter"], ["u", "undo"], ["c", "remark"], ["PgUp PgDn", "scroll"],
  ["s", "skip"], ["x", "flag"], ["d", "decline"], ["p", "pause"], ["g", "guidelines"], ["?", "help"],
];
const at = (id) => document.getElementById(id);
let hold = () => {};
let person = () => null;

/** Opens the pause: a calm screen over everything, and the clock stands still. */
export function pause() {
  hold(true);
  at("pause-dialog").showModal();
}

export function help() {
  at("keys-list").replaceChildren(...KEYS.flatMap(([keys, what]) => [
    make("dt", {}, ...keys.split(" ").flatMap((key) => [make("kbd", { text: key }), " "])),
    make("dd", { text: say(`keys.${what}`) }),
  ]));
  at("keys-on").checked = !localStorage.getItem(KEYS_OFF);
  at("who").textContent = say("who", person());
  at("password-name").value = person().name; // for password managers
  at("declines").checked = person().declines_crisis;
  at("help-dialog").showModal();
}

/** Asks why: a ready reason by its number, or own words; null when it is not meant after all. */
export function askReason(how) {
  const dialog = at("reason-dialog");
  at("reason-name").textContent = say(`${how}_title`);
  at("reason-why").textContent = say(`${how}_why`);
  at("reason").value = "";
  let chosen = null;
  const ready = (how === "flag" ? ["broken", "private", "wrong"] : ["unsure", "language", "personal"]).map((name, index) => {
    const text = say(`${how}_reasons.${name}`);
    const click = () => {
      chosen = text;
      dialog.close();
    };
    return make("button", { type: "button", click }, make("kbd", { text: String(index + 1) }), " ", make("span", { text }));
  });
  at("reasons").replaceChildren(...ready);
  const onKey = (event) => {
    if (event.target !== at("reason") && ready[Number(event.key) - 1]) {
      event.preventDefault();
      ready[Number(event.key) - 1].click();
    }
  };
  dialog.addEventListener("keydown", onKey);
  at("reason-form").onsubmit = (event) => {
    event.preventDefault();
    chosen = at("reason").value.trim();
    if (chosen) dialog.close();
    else at("reason").focus();
  };
  dialog.showModal();
  ready[0].focus();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.removeEventListener("keydown", onKey);
      resolve(chosen || null);
    }, { once: true }),
  );
}

/** `person()` is who works here, `setDeclines(value)` tells the server, `hold(on)` stops the clock, `finish()` sends what waits. */
export function startDialogs(given) {
  ({ hold, person } = given);
  at("pause").addEventListener("click", pause);
  at("help").addEventListener("click", help);
  at("pause-dialog").addEventListener("close", () => hold(false));
  at("reason-cancel").addEventListener("click", () => at("reason-dialog").close());
  at("keys-on").addEventListener("change", () => (at("keys-on").checked ? localStorage.removeItem(KEYS_OFF) : localStorage.setItem(KEYS_OFF, "yes")));
  at("declines").addEventListener("change", () => given.setDeclines(at("declines").checked));
  at("password-set").addEventListener("click", changePassword);
  for (const id of ["password-old", "password-new"])
    at(id).addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // it would close the dialog
      changePassword();
    });
  at("logout").addEventListener("click", () => goodbye("/api/logout", given.finish));
  at("leave").addEventListener("click", () => at("leave-dialog").showModal());
  at("leave-dialog").addEventListener("close", () => {
    if (at("leave-dialog").returnValue === "yes") goodbye("/api/leave", given.finish);
    at("leave-dialog").returnValue = "";
  });
}

async function changePassword() {
  const [old, fresh] = [at("password-old"), at("password-new")];
  try {
    begin(await call("POST", "/api/me/password", { old: old.value, new: fresh.value }));
    at("password-result").textContent = say("done");
    old.value = fresh.value = "";
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    at("password-result").textContent = error.status === 403 ? say("password_wrong") : fresh.value.length < 10 ? say("password_short") : error.message || say("failed_offline");
  }
}

async function goodbye(path, finish) {
  try {
    await finish();
    await call("POST", path);
    leaveTo("/login");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.kind === "login") leaveTo("/login");
    else at("who").textContent = say("failed", { message: error.message || say("failed_offline") });
  }
}
