// Guidelines in Markdown as elements: headings, lists, quotes, tables, code, emphasis. A link shows its words and its
// address as text, a picture its description. All text becomes text nodes, so nothing in it can act as markup.

import { make } from "../parts.js";

const HEADING = /^(#{1,6})\s+(.*?)\s*#*\s*$/;
const ENTRY = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const FENCE = /^\s*(```+|~~~+)/;
const QUOTE = /^\s{0,3}>\s?/;
const ROW = /^\s*\|.*\|\s*$/;
const UNDER_HEAD = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;
const INSIDE = /(`+)(.+?)\1|\*\*(\S.*?)\*\*|__(\S.*?)__|\*(\S.*?)\*|(?<!\w)_(\S.*?)_(?!\w)|!?\[([^\]]*)\]\(([^)\s]*)[^)]*\)|\\([\\`*_[\]#>|-])/s;
const DEEPEST = 8;
const LONGEST = 10_000; // characters of a paragraph in which marks are looked for

/** Markdown as a list of elements. */
export function markdown(source) {
  return blocks(source.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}

function blocks(lines, depth) {
  const made = [];
  const takeWhile = (at, fits) => {
    let end = at;
    while (end < lines.length && fits(lines[end], end)) end += 1;
    return end;
  };
  const begins = (line) => [HEADING, ENTRY, RULE, FENCE, QUOTE].some((form) => form.test(line));
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const heading = HEADING.exec(line);
    let end = at + 1;
    if (!line.trim()) {
      at = end;
      continue;
    }
    if (FENCE.test(line)) {
      const [, mark] = FENCE.exec(line);
      end = takeWhile(end, (one) => !one.trim().startsWith(mark));
      made.push(make("pre", {}, make("code", { text: lines.slice(at + 1, end).join("\n") })));
      end += 1;
    } else if (heading) {
      // The page has its own h1 and h2: what the guidelines call a title stands below them.
      made.push(make(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inside(heading[2])));
    } else if (RULE.test(line)) {
      made.push(make("hr"));
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      end = takeWhile(at, (one) => QUOTE.test(one));
      made.push(make("blockquote", {}, ...blocks(lines.slice(at, end).map((one) => one.replace(QUOTE, "")), depth + 1)));
    } else if (ENTRY.test(line) && depth < DEEPEST) {
      const belongs = (one) => /^\s{2,}\S/.test(one) || (ENTRY.test(one) && ordered(one) === ordered(line));
      end = takeWhile(end, (one, index) => belongs(one) || (!one.trim() && belongs(lines[index + 1] ?? "")));
      made.push(list(lines.slice(at, end), depth));
    } else if (ROW.test(line) && UNDER_HEAD.test(lines[end] ?? "")) {
      end = takeWhile(at, (one) => ROW.test(one));
      made.push(table(lines.slice(at, end)));
    } else {
      end = takeWhile(end, (one) => one.trim() && !begins(one));
      made.push(make("p", {}, ...inside(lines.slice(at, end).map((one) => one.trim()).join("\n"))));
    }
    at = end;
  }
  return made;
}

const ordered = (line) => /\d/.test(ENTRY.exec(line)[2]);

function list(lines, depth) {
  const [, margin, mark] = ENTRY.exec(lines[0]);
  const entries = [];
  for (const line of lines) {
    const found = ENTRY.exec(line);
    if (found && found[1].length <= margin.length) entries.push([found[3]]);
    else entries.at(-1).push(line.slice(Math.min(line.length - line.trimStart().length, margin.length + 2)));
  }
  const shown = entries.map((entry) => {
    const made = blocks(entry, depth + 1);
    const first = made[0]?.tagName === "P" ? [...made.shift().childNodes] : [];
    return make("li", {}, ...first, ...made);
  });
  return ordered(lines[0]) ? make("ol", { start: String(parseInt(mark, 10)) }, ...shown) : make("ul", {}, ...shown);
}

function table(lines) {
  const cells = (line) => line.trim().slice(1, -1).split("|").map((cell) => cell.trim());
  const row = (line, tag) => make("tr", {}, ...cells(line).map((cell) => make(tag, {}, ...inside(cell))));
  return make("table", {}, make("thead", {}, row(lines[0], "th")), make("tbody", {}, ...lines.slice(2).map((line) => row(line, "td"))));
}

function inside(text) {
  if (text.length > LONGEST) return [text];
  const nodes = [];
  for (let rest = text; rest; ) {
    const found = INSIDE.exec(rest);
    if (!found) return [...nodes, rest];
    if (found.index) nodes.push(rest.slice(0, found.index));
    const [whole, , code, strong, strongToo, weak, weakToo, words, address, plain] = found;
    if (code !== undefined) nodes.push(make("code", { text: code }));
    else if (plain !== undefined) nodes.push(plain);
    else if (address !== undefined) nodes.push(...inside(words), whole.startsWith("!") || !address || address === words ? "" : ` (${address})`);
    else if ((strong ?? strongToo) !== undefined) nodes.push(make("strong", {}, ...inside(strong ?? strongToo)));
    else nodes.push(make("em", {}, ...inside(weak ?? weakToo)));
    rest = rest.slice(found.index + whole.length);
  }
  return nodes;
}
