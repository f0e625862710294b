// The console's only script: it signs in, loads pages made by the device, keeps them live, and sends actions.
"use strict";
(() => {
  const key = "rivulet-console";
  const $ = (id) => document.getElementById(id);
  const main = $("main"), header = document.querySelector("header"), signIn = $("sign-in"), ask = $("ask");
  const roles = ["view", "operate", "admin"];
  let stream = null; // of the page that is shown

  const token = () => localStorage.getItem(key);
  const request = (path, init = {}) => {
    init.headers = Object.assign({ Authorization: "Bearer " + token() }, init.headers);
    return fetch("/api/" + path, init);
  };

  // The page stays what it is where nothing has changed: focus, open details and typed text are kept.
  function morph(from, to) {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName || (from.dataset && from.dataset.key !== to.dataset.key)) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-keep")) return;
    for (const a of [...from.attributes]) {
      if (!to.hasAttribute(a.name) && !(from.nodeName === "DETAILS" && a.name === "open") && a.name !== "aria-busy") from.removeAttribute(a.name);
    }
    for (const a of to.attributes) if (from.getAttribute(a.name) !== a.value) from.setAttribute(a.name, a.value);
    const old = [...from.childNodes], fresh = [...to.childNodes];
    fresh.forEach((node, i) => (i < old.length ? morph(old[i], node) : from.append(node)));
    old.slice(fresh.length).forEach((node) => node.remove());
  }

  // words are those of an error and its cure.
  const words = (failure) => failure.error + (failure.cure ? "\nWhat to do: " + failure.cure : "");

  function show(page) {
    if (page.error) {
      if (main.firstElementChild) return notice(words(page));
      const title = document.createElement("h1"), text = document.createElement("p");
      title.textContent = "Not available now";
      text.textContent = words(page);
      text.className = "lines";
      return main.append(title, text);
    }
    document.title = page.title + " – " + page.device;
    $("device").textContent = page.device;
    $("verdict").textContent = page.summary;
    $("verdict").className = page.state;
    for (const a of document.querySelectorAll("nav a")) {
      a.hidden = roles.indexOf(a.dataset.role || "view") > roles.indexOf(page.role);
      if (a.getAttribute("href") === page.section) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    const next = main.cloneNode(false);
    next.innerHTML = page.html;
    morph(main, next);
    for (const pre of main.querySelectorAll("pre[data-stream]:not([data-open])")) text(pre);
  }

  // text appends what a stream sends: a log, or the output of a shell.
  async function text(pre) {
    pre.dataset.open = "yes";
    const mine = stream;
    const add = (words) => {
      const low = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
      pre.append(words);
      while (pre.childNodes.length > 2000) pre.firstChild.remove();
      if (low) pre.scrollTop = pre.scrollHeight;
    };
    pre.add = add;
    try {
      const answer = await request("stream/" + pre.dataset.stream, { signal: mine.signal });
      if (!answer.ok) return add((await answer.json()).error + "\n");
      await events(answer, mine, (event) => {
        if (event.id) pre.shell = event.id;
        if (event.text) add(event.text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, ""));
        if (event.end) {
          pre.shell = "";
          add("\n[" + event.end + "]\n");
        }
      });
    } catch (e) {
      if (!mine.signal.aborted) add("\n[No connection to the device. Open it again.]\n");
    }
  }

  // events calls each with the events of an answer.
  async function events(answer, mine, each) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { value, done } = await reader.read();
      if (done || mine.signal.aborted) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const event = text.slice(0, end);
        each(event.startsWith("data: ") ? JSON.parse(event.slice(6)) : {});
      }
    }
  }

  function notice(text) {
    $("notice").textContent = text;
    $("notice").hidden = !text;
  }

  function signedOut(why) {
    localStorage.removeItem(key);
    if (stream) stream.abort();
    header.hidden = true;
    main.replaceChildren();
    signIn.hidden = false;
    document.title = "Sign in – Rivulet";
    $("sign-in-error").textContent = why || "";
    $("code").focus();
  }

  // live reads the stream of a page, and begins again when it ends.
  async function live(path, first) {
    if (stream) stream.abort();
    const mine = (stream = new AbortController());
    for (let pause = 500; !mine.signal.aborted; pause = Math.min(pause * 2, 8000)) {
      try {
        const answer = await request("page" + path + (path.includes("?") ? "&" : "?") + "live=1", { signal: mine.signal });
        if (answer.status === 401) return signedOut("The sign-in has ended.");
        await events(answer, mine, (page) => {
          $("offline").hidden = true;
          pause = 500;
          if (!page.title && !page.error) return;
          show(page);
          if (first) first();
          first = null;
        });
      } catch (e) {
        if (mine.signal.aborted) return;
      }
      if (mine.signal.aborted) return;
      $("offline").hidden = false;
      await new Promise((r) => setTimeout(r, pause));
    }
  }

  function go(path, push) {
    if (!token()) return signedOut();
    signIn.hidden = true;
    header.hidden = false;
    if (push) history.pushState(null, "", path);
    notice("");
    $("nav").classList.remove("open");
    $("menu").setAttribute("aria-expanded", "false");
    main.replaceChildren();
    live(path, () => {
      if (push) {
        scrollTo(0, 0);
        main.focus({ preventScroll: true });
      }
    });
  }

  // question asks before something ends.
  function question(text, yes) {
    return new Promise((resolve) => {
      $("ask-title").textContent = yes ? "Go on?" : "Done";
      $("ask-text").replaceChildren();
      if (typeof text === "string") $("ask-text").textContent = text;
      else $("ask-text").append(text);
      ask.querySelector("button[value=no]").textContent = yes ? "Cancel" : "Close";
      $("ask-yes").hidden = !yes;
      ask.returnValue = "no";
      ask.onclose = () => resolve(ask.returnValue === "yes");
      ask.showModal();
    });
  }

  async function act(action, values, button) {
    const body = new URLSearchParams(values);
    if (body.has("now")) body.set("now", Date.now());
    if (button) button.setAttribute("aria-busy", "true");
    try {
      const answer = await request("do/" + action, { method: "POST", body });
      if (answer.status === 401) return signedOut("The sign-in has ended.");
      const result = await answer.json();
      if (result.confirm) {
        if (await question(result.confirm, true)) {
          body.set("confirmed", result.token || "yes");
          return await act(action, body, button);
        }
        return;
      }
      if (result.error) {
        notice(words(result));
        return;
      }
      if (result.download) location.assign(result.download);
      if (result.go) go(result.go, true);
      notice(result.notice || "");
      if (result.html) {
        const shown = document.createElement("div");
        shown.innerHTML = result.html;
        await question(shown, false);
      }
    } catch (e) {
      notice("The device did not answer. Try again.");
    } finally {
      if (button) button.removeAttribute("aria-busy");
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (button && !button.form) {
      const { do: action, ...values } = button.dataset;
      act(action, values, button);
      return;
    }
    const a = event.target.closest("a[href]");
    if (!a || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || a.target || a.origin !== location.origin) return;
    if (a.getAttribute("href").startsWith("#")) return;
    event.preventDefault();
    go(a.pathname + a.search, true);
  });

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form === $("sign-in-form")) {
      event.preventDefault();
      enter($("code").value);
    } else if (form.hasAttribute("data-input")) {
      event.preventDefault();
      const pre = form.parentNode.querySelector("pre"), line = form.elements.line.value;
      form.reset();
      pre.add("$ " + line + "\n");
      act("shell-input", { id: pre.shell || "", line });
    } else if (form.dataset.do) {
      event.preventDefault();
      const values = new FormData(form);
      act(form.dataset.do, values, event.submitter).then(() => form.hasAttribute("data-once") && form.reset());
    } else if (form.dataset.go) {
      event.preventDefault();
      go(form.dataset.go + "?" + new URLSearchParams(new FormData(form)), true);
    }
  });

  async function enter(code) {
    $("sign-in-error").textContent = "";
    try {
      const answer = await fetch("/api/sign-in", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });
      const result = await answer.json();
      if (!answer.ok) {
        $("sign-in-error").textContent = words(result);
        $("code").select();
        return;
      }
      localStorage.setItem(key, result.token);
      $("code").value = "";
      go(location.pathname + location.search, false);
    } catch (e) {
      $("sign-in-error").textContent = "The device did not answer. Try again.";
    }
  }

  $("notice").addEventListener("click", () => notice(""));
  $("menu").addEventListener("click", () => {
    const open = $("nav").classList.toggle("open");
    $("menu").setAttribute("aria-expanded", String(open));
  });
  addEventListener("popstate", () => go(location.pathname + location.search, false));
  addEventListener("storage", (event) => event.key === key && !event.newValue && signedOut());

  // A link from a QR code has the code behind "#", which browsers do not send to servers.
  // QR codes may be in capitals.
  const fragment = new URLSearchParams(location.hash.slice(1).replace(/^[A-Z]+=/, (name) => name.toLowerCase()));
  if (fragment.has("code")) {
    history.replaceState(null, "", location.pathname + location.search);
    if (!token()) {
      signedOut();
      $("code").value = fragment.get("code");
      enter(fragment.get("code"));
      return;
    }
  }
  go(location.pathname + location.search, false);
})();
