// Keeps a page up to date: one event stream while the page is visible, and a word when the server is silent.

const address = document.getElementById("stream")?.dataset.address;
const trouble = document.getElementById("trouble");
let lastWord = new Date();
let source = null;

function say(text) {
  trouble.textContent = text;
  trouble.hidden = !text;
}

function isHeard() {
  lastWord = new Date();
  say("");
}

function isSilent() {
  say(`The server does not answer. This page is as of ${lastWord.toLocaleTimeString()} and goes on by itself.`);
}

// A hidden page holds no connection: browsers allow six for each server.
function followWhileVisible() {
  if (!address) return;
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource(address);
  source.addEventListener("open", isHeard);
  source.addEventListener("error", isSilent);
  source.addEventListener("changed", () => {
    isHeard();
    window.htmx.trigger("#page", "changed");
    document.dispatchEvent(new CustomEvent("assay:changed"));
  });
}

// What a reader opened, typed or zoomed stays as it is when the page's facts change.
Object.assign(window.Idiomorph.defaults.callbacks, {
  beforeNodeMorphed: (old) => !(old instanceof Element && old.closest("[data-live]")),
  beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details"),
});

document.body.addEventListener("htmx:afterOnLoad", isHeard);
document.body.addEventListener("htmx:sendError", isSilent);
document.body.addEventListener("htmx:responseError", isSilent);
document.addEventListener("visibilitychange", followWhileVisible);
followWhileVisible();
