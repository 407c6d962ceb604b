// Calls to the workbench's API. A call either gives its JSON or throws a Failure that says what kind it is:
// "offline" (try again), "login" (nobody is logged in), "refused" (the server says why).

export class Failure extends Error {
  constructor(kind, message = "", status = 0, wait = 0) {
    super(message);
    Object.assign(this, { kind, status, wait });
  }
}

let csrf = null;

/** The token that changing calls carry; it comes with every login and with `/api/me`. */
export function useToken(token) {
  csrf = token;
}

/** Calls the API; `body` is sent as JSON, a file as it is. */
export async function call(method, path, body, signal) {
  const answer = await ask(method, path, body, signal);
  return answer.status === 204 ? null : answer.json();
}

async function ask(method, path, body, signal, again = true) {
  const headers = {};
  if (csrf && method !== "GET") headers["X-CSRF-Token"] = csrf;
  const file = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = file ? "application/octet-stream" : "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined || file ? body : JSON.stringify(body) });
  } catch {
    throw new Failure("offline");
  }
  if (answer.ok) return answer;
  const reply = await answer.json().catch(() => null);
  const message = reply?.error?.message ?? answer.statusText;
  if (reply?.error?.code === "csrf" && again) {
    // The session began anew, in another tab say: its token is another.
    useToken((await call("GET", "/api/me")).csrf);
    return ask(method, path, body, signal, false);
  }
  if (answer.status === 401) throw new Failure("login", message, 401);
  if (answer.status === 429 || answer.status >= 500) throw new Failure("offline", message, answer.status, Number(answer.headers.get("Retry-After")) || 0);
  throw new Failure("refused", message, answer.status);
}

/** Does something with the server; while it cannot be reached, tries again. `tell` hears "offline" and "online". */
export async function tryUntil(doing, tell) {
  for (let wait = 1; ; wait = Math.min(10, wait * 2)) {
    try {
      const answer = await doing();
      tell("online");
      return answer;
    } catch (error) {
      if (!(error instanceof Failure) || error.kind !== "offline") throw error;
      tell("offline");
      await new Promise((resolve) => setTimeout(resolve, 1000 * Math.max(error.wait, wait)));
    }
  }
}
