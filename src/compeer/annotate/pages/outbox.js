// What is still to be sent: labels, skips and flags, in their order. Each waits in memory and in the browser's storage
// until the server has acknowledged it, so that neither a lost connection nor a closed tab loses one. The same label
// sent twice is one label to the server.

import { Failure, call } from "./server.js";

const PREFIX = "compeer.workbench.outbox.";
const WAITS = [1, 2, 4, 8, 10];

const waiting = read();
let sending = null;
let wake = () => {};

function read() {
  const kept = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).sort();
  return kept.map((key) => ({ ...JSON.parse(localStorage.getItem(key)), key }));
}

/** How many calls of this person wait. */
export const left = (person) => waiting.filter((entry) => entry.person === person).length;

/** Adds a call to what is to be sent. */
export function add(person, method, path, body) {
  const entry = { person, method, path, body, key: `${PREFIX}${Date.now()}.${crypto.getRandomValues(new Uint32Array(1))[0]}` };
  waiting.push(entry);
  try {
    localStorage.setItem(entry.key, JSON.stringify({ person, method, path, body }));
  } catch {
    // No room: it is still in memory.
  }
}

/**
 * Sends all that waits of one person, in order, trying again for as long as the server cannot be reached; gives the last
 * call's answer. `tell` hears "offline" and "online", and what the server refuses for good, which is then given up.
 */
export function send(person, tell) {
  sending ??= sendAll(person, tell).finally(() => (sending = null));
  return sending;
}

async function sendAll(person, tell) {
  let answer = null;
  let tries = 0;
  for (let entry = next(person); entry; entry = next(person)) {
    try {
      answer = await call(entry.method, entry.path, entry.body);
    } catch (error) {
      if (!(error instanceof Failure) || error.kind === "login") throw error;
      if (error.kind === "offline") {
        tell("offline");
        await rest(Math.max(error.wait, WAITS[Math.min(tries, WAITS.length - 1)]));
        tries += 1;
        continue;
      }
      tell("refused", error);
      answer = null;
    }
    tell("online");
    tries = 0;
    waiting.splice(waiting.indexOf(entry), 1);
    localStorage.removeItem(entry.key);
  }
  return answer;
}

const next = (person) => waiting.find((entry) => entry.person === person);

function rest(seconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    wake = () => (clearTimeout(timer), resolve());
  });
}

window.addEventListener("online", () => wake());
