// Paging through the transcripts. Without it every transcript stands closed in the page and opens by a click.
// A transcript's markup waits as text in its <noscript> until it is wanted: two hundred dialogues then cost no layout.
"use strict";
(() => {
  const list = document.querySelector(".scenarios");
  if (!list) return;
  const root = document.documentElement;
  const find = document.getElementById("find");
  const order = document.getElementById("order");
  const unfold = document.getElementById("unfold");
  const pager = document.querySelector(".pager");
  const entries = [...list.children].map((item, index) => {
    const link = item.querySelector("a");
    const body = document.getElementById(link.hash.slice(1));
    return {
      index, item, link, body,
      dialogue: body.closest("details"),
      markup: body.querySelector("noscript").textContent,
      score: item.dataset.score === "" ? null : Number(item.dataset.score),
    };
  });
  let shown = entries.slice();
  let current = null;

  function plain(entry) {
    if (entry.plain === undefined) {
      const text = entry.link.textContent + " " + entry.markup.replace(/<[^>]*>/g, " ");
      entry.plain = text.replace(/&(lt|gt|amp|#34|#39);/g, (_, name) => ({ lt: "<", gt: ">", amp: "&", "#34": '"', "#39": "'" })[name]).toLowerCase();
    }
    return entry.plain;
  }

  function place() {
    const at = shown.indexOf(current);
    document.getElementById("where").textContent = at < 0 ? `${shown.length} found` : `${at + 1} of ${shown.length}`;
    document.getElementById("previous").disabled = at <= 0;
    document.getElementById("next").disabled = shown.length === 0 || at === shown.length - 1;
  }

  function open(entry, scroll) {
    if (current && current !== entry) {
      current.dialogue.open = false;
      current.body.textContent = "";
      current.link.removeAttribute("aria-current");
    }
    if (current !== entry) {
      current = entry;
      entry.body.innerHTML = entry.markup;
      entry.dialogue.open = true;
      entry.link.setAttribute("aria-current", "true");
      fold();
    }
    const line = entry.item;
    if (line.offsetTop < list.scrollTop) list.scrollTop = line.offsetTop;
    else if (line.offsetTop + line.offsetHeight > list.scrollTop + list.clientHeight)
      list.scrollTop = line.offsetTop + line.offsetHeight - list.clientHeight;
    if (scroll) {
      history.replaceState(null, "", entry.link.hash);
      pager.parentElement.scrollIntoView({ block: "start" });
    }
    place();
  }

  function move(step) {
    const at = shown.indexOf(current);
    const wanted = at < 0 ? shown[0] : shown[at + step];
    if (wanted) open(wanted, true);
  }

  function fold() {
    for (const part of current.body.querySelectorAll("details.why")) part.open = unfold.checked;
  }

  function arrange() {
    const words = find.value.trim().toLowerCase();
    const sign = { low: 1, high: -1 }[order.value];
    const arranged = entries.slice();
    if (sign) arranged.sort((a, b) => (a.score === null) - (b.score === null) || sign * (a.score - b.score) || a.index - b.index);
    shown = arranged.filter((entry) => !words || plain(entry).includes(words));
    const kept = new Set(shown);
    for (const entry of arranged) entry.item.hidden = !kept.has(entry);
    list.append(...arranged.map((entry) => entry.item));
    place();
  }

  function follow(scroll) {
    const entry = entries.find((one) => one.link.hash === location.hash);
    if (entry) open(entry, scroll);
    return entry;
  }

  root.classList.replace("unscripted", "scripted");
  for (const entry of entries) entry.dialogue.open = false;
  let waiting = 0;
  find.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(arrange, 150);
  });
  order.addEventListener("change", arrange);
  unfold.addEventListener("change", fold);
  document.getElementById("previous").addEventListener("click", () => move(-1));
  document.getElementById("next").addEventListener("click", () => move(1));
  list.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(entries.find((entry) => entry.link === link), true);
  });
  addEventListener("hashchange", () => follow(true));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input[type=search], select, .scroll")) return;
    const step = { ArrowLeft: -1, k: -1, ArrowRight: 1, j: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    move(step);
  });
  if (!follow(true) && entries.length) open(entries[0], false);
})();
