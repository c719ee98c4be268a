// Keeps a page up to date: one event stream while the page is visible, and a word when the server is silent.

const address = document.getElementById("stream")?.dataset.address;
const trouble = document.getElementById("trouble");
let lastWord = new Date();
let source = null;
let numErrors = 0; // of the stream since the server was heard
let isPageOld = false; // the last fetch of the page was refused
let nextFetch = null;
let lastFetchMs = 0;
const RETRY_MS = 5000;
const SILENT_MS = 40000; // more than two of the server's heartbeats

function say(text) {
  trouble.textContent = text;
  trouble.hidden = !text;
}

function isHeard() {
  lastWord = new Date();
  numErrors = 0;
  if (!isPageOld) say("");
}

function isSilent() {
  say(`The server does not answer. This page is as of ${lastWord.toLocaleTimeString()} and goes on by itself.`);
}

// A server that cannot read its home says why; a login that has ended needs the reader.
function isRefused(event) {
  const { status, responseText } = event.detail.xhr;
  if (status === 401) return location.reload();
  isPageOld = true;
  const why = new DOMParser().parseFromString(responseText, "text/html").querySelector(".sentence")?.textContent;
  say(`${why ?? "The server failed."} This page is as of ${lastWord.toLocaleTimeString()} and goes on by itself.`);
  setTimeout(fetchPageSoon, RETRY_MS);
}

// The browser opens a stream again that the server has ended, but not one that it refuses.
function isCut() {
  numErrors += 1;
  if (numErrors > 1) isSilent();
  if (source.readyState !== EventSource.CLOSED) return;
  fetchPageSoon(); // it says why, or leads to the login
  setTimeout(followWhileVisible, RETRY_MS);
}

// A hidden page holds no connection: browsers allow six for each server.
function followWhileVisible() {
  if (!address) return;
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource(address);
  source.addEventListener("open", isHeard);
  source.addEventListener("error", isCut);
  source.addEventListener("unchanged", isHeard);
  source.addEventListener("changed", () => {
    isHeard();
    fetchPageSoon();
    document.dispatchEvent(new CustomEvent("assay:changed"));
  });
}

// A page is fetched again at most once in its own refresh time; the last change of a burst is never left out.
function fetchPageSoon() {
  if (nextFetch) return;
  const page = document.getElementById("page");
  const waitMs = Math.max(0, 1000 * Number(page.dataset.refreshS) - (Date.now() - lastFetchMs));
  nextFetch = setTimeout(() => {
    nextFetch = null;
    lastFetchMs = Date.now();
    window.htmx.trigger("#page", "changed");
  }, waitMs);
}

// UTC times are shown in the reader's zone, with UTC beside: 2026-11-29 01:47 (00:47 UTC).
function showLocalTimes() {
  let isLocal = false;
  for (const element of document.querySelectorAll("time[datetime]")) {
    const utc = element.getAttribute("datetime").slice(0, -1);
    const moment = new Date(`${utc}Z`);
    if (Number.isNaN(moment.getTime()) || moment.getTimezoneOffset() === 0 || element.textContent.endsWith(")")) continue;
    const local = moment.toLocaleString("sv-SE").slice(0, utc.length); // Sweden writes 2026-11-29 01:47:59
    const isSameDay = local.slice(0, 10) === utc.slice(0, 10);
    element.textContent = `${local} (${isSameDay ? utc.slice(11) : utc.replace("T", " ")} UTC)`;
    isLocal = true;
  }
  if (!isLocal) return;
  const heads = [...document.querySelectorAll("th, dt")].filter((head) => head.textContent.endsWith("(UTC)"));
  for (const head of heads) head.textContent = head.textContent.replace("(UTC)", "(local)");
  for (const cell of document.querySelectorAll("[data-head$='(UTC)']")) cell.dataset.head = cell.dataset.head.replace("(UTC)", "(local)");
}

// What a reader opened, typed or zoomed stays as it is when the page's facts change.
Object.assign(window.Idiomorph.defaults.callbacks, {
  beforeNodeMorphed: (old) => !(old instanceof Element && old.closest("[data-live]")),
  beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details"),
});

// A page of an error is loaded again once the server can make the page.
async function loadOncePossible(retryMs) {
  const response = await fetch(location.href).catch(() => null);
  if (response?.ok) location.reload();
  else setTimeout(loadOncePossible, retryMs, retryMs);
}
const retryS = Number(document.getElementById("page").dataset.retryS ?? 0);
if (retryS) setTimeout(loadOncePossible, 1000 * retryS, 1000 * retryS);

document.body.addEventListener("htmx:afterSwap", () => {
  isPageOld = false;
  isHeard();
});
document.body.addEventListener("htmx:afterSwap", showLocalTimes);
document.body.addEventListener("htmx:sendError", isSilent);
document.body.addEventListener("htmx:responseError", isRefused);
document.addEventListener("visibilitychange", followWhileVisible);
setInterval(() => source && Date.now() - lastWord > SILENT_MS && isSilent(), 5000);
followWhileVisible();
showLocalTimes();
