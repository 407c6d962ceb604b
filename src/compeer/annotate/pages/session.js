// Who is logged in. The browser's storage remembers that somebody is, so that a newcomer is sent to the login page
// without asking the server first.

import { Failure, call, useToken } from "./server.js";

const KEY = "compeer.workbench.person";

/** Takes up a session that the server has begun. */
export function begin({ person, csrf }) {
  localStorage.setItem(KEY, String(person.id));
  useToken(csrf);
}

/** The person and what they did today; null where nobody is logged in, and the login page comes. */
export async function me() {
  if (!localStorage.getItem(KEY)) return leaveTo("/login");
  try {
    const reply = await call("GET", "/api/me");
    begin(reply);
    return reply;
  } catch (error) {
    if (error instanceof Failure && error.kind === "login") return leaveTo("/login");
    throw error;
  }
}

/** Goes to the login page, as nobody. */
export function leaveTo(path) {
  localStorage.removeItem(KEY);
  location.replace(path);
  return null;
}
