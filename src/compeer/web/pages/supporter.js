// Talking to the server: which supporter answers there, and one turn of it, streamed.
// It is the OpenAI-compatible API of docs/api.md; `compeer` on a chunk is its extra field.

const KEY = "compeer.key";

/** What went wrong, as the page can say it: `kind` is a key of the words under "failed". */
export class Failure extends Error {
  constructor(kind, details = {}) {
    super(kind);
    this.kind = kind;
    this.details = details;
  }
}

/** Remembers the key of this server as long as the tab is open. */
export const useKey = (key) => sessionStorage.setItem(KEY, key);

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headers(), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw new Failure("stopped");
    throw new Failure("offline");
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  if (answer.status === 401) throw new Failure("key");
  if (answer.status === 429 || answer.status === 503)
    throw new Failure("busy", { seconds: Number(answer.headers.get("Retry-After")) || 5 });
  throw new Failure("refused", { message: body?.error?.message ?? `HTTP ${answer.status}` });
}

/** The supporter of this server: its name (id), whether it sees pictures, its language, whether it is guarded. */
export async function readSupporter() {
  const answer = await ask("/v1/models");
  return (await answer.json()).data[0];
}

function read(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Failure("broken");
  }
}

/** Asks for one turn and calls `heard` with each chunk as it comes; ends when the server has said that it is done. */
export async function converse(request, heard, signal) {
  const answer = await ask("/v1/chat/completions", { method: "POST", body: JSON.stringify({ ...request, stream: true }), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch {
      throw new Failure(signal.aborted ? "stopped" : "broken");
    }
    if (piece.done) throw new Failure("broken");
    const lines = (waiting + piece.value).split(/\r?\n/);
    waiting = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const chunk = read(data);
      if (chunk.error) throw new Failure("refused", { message: chunk.error.message });
      heard(chunk);
    }
  }
}
