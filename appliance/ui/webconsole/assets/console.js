// The console's only script: it signs in, loads pages made by the device, keeps them live, and sends actions.
"use strict";
(() => {
  const key = "rivulet-console";
  const $ = (id) => document.getElementById(id);
  const main = $("main"), header = document.querySelector("header"), signIn = $("sign-in"), ask = $("ask");
  const roles = ["view", "operate", "admin"];
  const silent = 40000, beat = 16000; // ms without a byte until the device counts as gone, and between two of its beats
  const hiddenFor = 60000; // ms until a page that nobody sees is not read any more
  let stream = null; // of the page that is shown
  let heard = 0; // when its last byte came; by the wall clock, since others stand still in suspend
  let shown = ""; // the path of the page that is in main
  const loaded = document.querySelector('meta[name="assets"]').content;

  const token = () => localStorage.getItem(key);
  const request = (path, init = {}) => {
    init.headers = Object.assign({ Authorization: "Bearer " + token() }, init.headers);
    return fetch("/api/" + path, init);
  };

  // keyOf names an element among its brothers, so that it stays itself when others come and go.
  function keyOf(e) {
    if (e.nodeType !== Node.ELEMENT_NODE) return "";
    if (e.dataset.key) return e.nodeName + e.dataset.key;
    if (e.id) return "#" + e.id;
    return e.dataset.do || e.nodeName === "A" ? e.nodeName + JSON.stringify(e.dataset) + (e.getAttribute("href") || "") : "";
  }

  // The page stays what it is where nothing has changed: focus, open details and typed text are kept. A button never
  // becomes another one.
  function morph(from, to) {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-keep")) return;
    for (const a of [...from.attributes]) {
      if (!to.hasAttribute(a.name) && !(from.nodeName === "DETAILS" && a.name === "open") && !a.name.startsWith("aria-")) from.removeAttribute(a.name);
    }
    for (const a of to.attributes) if (from.getAttribute(a.name) !== a.value) from.setAttribute(a.name, a.value);
    const fits = (o, n) => o.nodeType === n.nodeType && o.nodeName === n.nodeName && keyOf(o) === keyOf(n);
    const old = [...from.childNodes].filter((o) => !o.hasAttribute?.("data-own")), fresh = [...to.childNodes];
    const pairs = fresh.map((n) => {
      const at = old.findIndex((o) => fits(o, n));
      return at < 0 ? n : old.splice(at, 1)[0];
    });
    old.forEach((o) => o.remove());
    const focus = document.activeElement;
    let next = from.firstChild;
    pairs.forEach((node, i) => {
      while (next?.hasAttribute?.("data-own")) next = next.nextSibling;
      if (node === next) next = next.nextSibling;
      else from.insertBefore(node, next);
      if (node !== fresh[i]) morph(node, fresh[i]);
    });
    if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
  }

  // words are those of an error and its cure.
  const words = (failure) => failure.error + (failure.cure ? "\nWhat to do: " + failure.cure : "");

  // put writes a text only when it differs: a screen reader says what is written.
  const put = (e, text) => e.textContent !== text && (e.textContent = text);

  // wrong says what keeps the page from being up to date, until that is over. The content stays, paler.
  function wrong(line, text) {
    put(line, text);
    line.hidden = !text;
    main.classList.toggle("old", !$("offline").hidden || !$("failed").hidden);
  }

  // show shows a page; fresh is one that was not shown before.
  function show(page, fresh) {
    if (page.error) {
      if (!fresh) return wrong($("failed"), "This page cannot be updated: " + words(page));
      wrong($("failed"), "");
      const title = document.createElement("h1"), text = document.createElement("p");
      title.textContent = page.title || "Not available now";
      text.textContent = words(page);
      text.className = "lines";
      main.replaceChildren(title, text);
      document.title = title.textContent + " – " + $("device").textContent;
      return;
    }
    if (page.assets && page.assets !== loaded && !typing()) return location.reload(); // the device was upgraded
    wrong($("failed"), "");
    document.title = page.title + " – " + page.device;
    put($("device"), page.device);
    put($("verdict"), page.summary);
    $("verdict").className = page.state;
    for (const a of document.querySelectorAll("nav a")) {
      a.hidden = roles.indexOf(a.dataset.role || "view") > roles.indexOf(page.role);
      if (a.getAttribute("href") === page.section) a.setAttribute("aria-current", "page");
      else a.removeAttribute("aria-current");
    }
    const next = main.cloneNode(false);
    next.innerHTML = page.html;
    for (const table of next.querySelectorAll("table.stack")) { // its look on a phone takes these away
      table.setAttribute("role", "table");
      for (const e of table.querySelectorAll("thead,tbody")) e.setAttribute("role", "rowgroup");
      for (const e of table.querySelectorAll("tr")) e.setAttribute("role", "row");
      for (const e of table.querySelectorAll("td")) e.setAttribute("role", "cell");
      for (const e of table.querySelectorAll("th")) e.setAttribute("role", "columnheader");
    }
    for (const e of next.querySelectorAll("time")) local(e);
    if (fresh) main.replaceChildren(...next.childNodes);
    else morph(main, next);
    for (const pre of main.querySelectorAll("pre[data-stream]:not([data-open], [data-over])")) text(pre);
  }

  // local writes a time as the clock of the browser shows it.
  function local(e) {
    const at = new Date(e.dateTime);
    if (isNaN(at)) return;
    e.title = e.textContent;
    e.textContent = at.toLocaleString([], { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  }

  // typing: a person is in the middle of something that a reload would lose.
  const typing = () => ask.open || main.querySelector("pre[data-open]") !== null || [...main.querySelectorAll("input:not([type=hidden])")].some((i) => i.value !== i.defaultValue);

  // text appends what a stream sends: a log, or the output of a shell.
  async function text(pre) {
    pre.dataset.open = "yes";
    const mine = stream, most = 1 << 20; // characters that are kept
    let kept = 0;
    const add = (words) => {
      const low = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
      pre.append(words);
      for (kept += words.length; kept > most && pre.childNodes.length > 1; pre.firstChild.remove()) kept -= pre.firstChild.textContent.length;
      if (low) pre.scrollTop = pre.scrollHeight;
    };
    pre.add = add;
    // over ends the text, with a way to go on.
    const over = (why) => {
      pre.shell = "";
      delete pre.dataset.open;
      pre.dataset.over = "yes";
      add("\n[" + why + "]\n");
      const button = document.createElement("button");
      button.textContent = "Go on";
      button.onclick = () => {
        button.remove();
        text(pre);
      };
      pre.after(button);
    };
    let ended = "";
    try {
      // From a minute before the last text on: a line may have been long on its way.
      const since = pre.at && !pre.dataset.stream.includes("previous=") ? "&since=" + Math.max(60, Math.ceil((Date.now() - pre.at) / 1000) + 60) : "";
      const answer = await request("stream/" + pre.dataset.stream + since, { signal: mine.signal });
      if (!answer.ok) return over(words(await answer.json()));
      await events(answer, mine, (event) => {
        if (event.id) pre.shell = event.id;
        if (event.text) pre.at = Date.now();
        if (event.text) add(event.text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, ""));
        if (event.end) ended = event.end;
      });
      if (!mine.signal.aborted) over(ended || "The device ended the connection.");
    } catch (e) {
      if (!mine.signal.aborted) over("No connection to the device.");
    }
  }

  // events calls each with the events of an answer. A device that sends nothing for long has gone, whatever TCP says.
  async function events(answer, mine, each) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let watch = 0;
    try {
      for (let text = ""; ; ) {
        const quiet = new Promise((_, gone) => (watch = setTimeout(() => gone(new Error("silent")), silent)));
        const { value, done } = await Promise.race([reader.read(), quiet]);
        clearTimeout(watch);
        if (done || mine.signal.aborted) return;
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
          const event = text.slice(0, end);
          each(event.startsWith("data: ") ? JSON.parse(event.slice(6)) : {});
        }
      }
    } finally {
      clearTimeout(watch);
      reader.cancel().catch(() => {});
    }
  }

  // notice shows what an action came to: a result, or with bad an error.
  function notice(text, bad) {
    put($("notice-done"), bad ? "" : text);
    put($("notice-failed"), bad ? text : "");
    $("notice").classList.toggle("empty", !text);
  }

  function signedOut(why) {
    localStorage.removeItem(key);
    if (stream) stream.abort();
    if (ask.open) ask.close("no");
    notice("");
    put($("ends"), "");
    wrong($("failed"), "");
    wrong($("offline"), "");
    header.hidden = true;
    main.replaceChildren();
    main.inert = false;
    shown = "";
    signIn.hidden = false;
    document.title = "Sign in – " + $("device").textContent;
    $("sign-in-error").textContent = why || "";
    $("code").focus();
  }

  const clock = (at) => at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });

  // live reads the stream of a page, and begins again when it ends.
  async function live(path, first) {
    if (stream) stream.abort();
    const mine = (stream = new AbortController());
    mine.first = () => first; // of who goes on with this page
    let last = null; // the time of the last byte
    for (let pause = 500; !mine.signal.aborted; pause = Math.min(pause * 2, 8000)) {
      const once = new AbortController();
      const stop = () => once.abort();
      mine.signal.addEventListener("abort", stop);
      mine.again = stop;
      const answered = setTimeout(stop, silent);
      let why = "No connection to the device";
      try {
        const answer = await request("page" + path + (path.includes("?") ? "&" : "?") + "live=1", { signal: once.signal });
        clearTimeout(answered);
        if (answer.status === 401) return signedOut("The sign-in has ended.");
        if (!answer.ok) why = "The device answers: " + (await answer.text()).slice(0, 200).trim();
        else {
          await events(answer, once, (page) => {
            heard = Date.now();
            last = new Date();
            wrong($("offline"), "");
            pause = 500;
            if (page.ends !== undefined) put($("ends"), page.ends);
            if (page.title || page.error) {
              show(page, first !== null);
              if (first) first();
              first = null;
            }
          });
        }
      } catch (e) {
        if (mine.signal.aborted) return;
      } finally {
        clearTimeout(answered);
        mine.signal.removeEventListener("abort", stop);
      }
      if (mine.signal.aborted) return;
      wrong($("offline"), why + (last ? " since " + clock(last) : "") + ". The page shows the last known state and continues by itself.");
      await new Promise((r) => {
        mine.soon = r;
        setTimeout(r, pause);
      });
    }
  }

  // fresher reads the page again where the device may have gone unnoticed: the browser slept, or was without a network.
  function fresher() {
    if (!stream || stream.signal.aborted || !shown) return;
    const age = Date.now() - heard;
    if (age > 1.5 * beat || age < 0) stream.again?.();
    stream.soon?.();
  }

  // go shows the page at a path. What was shown stays, and takes no clicks, until the new one is there.
  function go(path, push, y = 0) {
    if (!token()) return signedOut();
    signIn.hidden = true;
    header.hidden = false;
    if (push) {
      history.replaceState({ y: scrollY }, "");
      history.pushState(null, "", path);
    }
    notice("");
    $("nav").classList.remove("open");
    $("menu").setAttribute("aria-expanded", "false");
    main.inert = true;
    main.setAttribute("aria-busy", "true");
    const same = shown.split("?")[0] === path.split("?")[0];
    shown = path;
    live(path, () => {
      main.inert = false;
      main.removeAttribute("aria-busy");
      const pre = main.querySelector("pre[data-stream]");
      if (push && pre) {
        pre.scrollIntoView({ block: "nearest" });
        pre.focus({ preventScroll: true });
      } else if (push && !same) {
        scrollTo(0, 0);
        main.focus({ preventScroll: true });
      } else if (!push) scrollTo(0, y);
    });
  }

  // question asks before something ends, or shows what was made. The one before it is answered with no.
  let answerBefore = null;
  function question(text, yes, danger) {
    answerBefore?.(false);
    if (ask.open) ask.close("no");
    return new Promise((resolve) => {
      answerBefore = resolve;
      $("ask-title").textContent = yes ? (danger || "Go on") + "?" : "Done";
      $("ask-text").replaceChildren();
      if (typeof text === "string") $("ask-text").textContent = text;
      else $("ask-text").append(text);
      ask.querySelector("button[value=no]").textContent = yes ? "Cancel" : "Close";
      $("ask-yes").hidden = !yes;
      $("ask-yes").textContent = danger || "Go on";
      $("ask-yes").className = danger ? "bad" : "main";
      ask.returnValue = "no";
      ask.onclose = () => ask.open || resolve(ask.returnValue === "yes"); // the event of the one before may come late
      ask.showModal();
    });
  }

  // refuse shows an error where its cause is: at the field of a form, which keeps what was typed.
  function refuse(form, text) {
    const field = form?.querySelector("input:not([type=hidden])");
    if (!field || !form.isConnected) return notice(text, true);
    const line = document.createElement("p");
    line.className = "error lines refusal";
    line.id = "refusal-" + field.id;
    line.setAttribute("role", "alert");
    line.dataset.own = "";
    line.textContent = text;
    form.append(line);
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", line.id);
    field.focus();
  }

  // act sends an action, and reports whether it was done. One that was sent is not sent again before its answer.
  async function act(action, values, button, form) {
    const body = new URLSearchParams(values), busy = form || button;
    if (body.has("now")) body.set("now", Date.now());
    if (busy?.acting) return false;
    if (busy) busy.acting = true;
    if (button) button.setAttribute("aria-busy", "true");
    if (form) {
      for (const old of form.querySelectorAll(".refusal")) old.remove();
      for (const field of form.querySelectorAll("[aria-invalid]")) ["aria-invalid", "aria-describedby"].forEach((a) => field.removeAttribute(a));
    }
    try {
      for (;;) {
        const answer = await request("do/" + action, { method: "POST", body });
        if (answer.status === 401) return signedOut("The sign-in has ended.");
        const result = await answer.json();
        if (result.confirm) {
          if (!(await question(result.confirm, true, button?.classList.contains("bad") && button.textContent.trim()))) return false;
          body.set("confirmed", result.token || "yes");
          continue;
        }
        if (result.error) {
          refuse(form, words(result));
          return false;
        }
        if (result.download) location.assign(result.download);
        if (result.go) go(result.go, true);
        notice(result.notice || "");
        if (result.html) {
          const made = document.createElement("div");
          made.innerHTML = result.html;
          await question(made, false);
        }
        return true;
      }
    } catch (e) {
      notice("The device did not answer. It may have been done: look at the page before you try again.", true);
      return false;
    } finally {
      if (busy) busy.acting = false;
      if (button) button.removeAttribute("aria-busy");
    }
  }

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("button[data-copy]");
    if (copy) {
      navigator.clipboard.writeText(copy.dataset.copy).then(() => put(copy, "Copied"), () => put(copy, "Select the text to copy it"));
      return;
    }
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
    if (a.pathname + a.search === shown && main.querySelector("pre[data-open]")) return; // it would end its shell
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
      if (form.acting) return;
      pre.add("$ " + line + "\n");
      act("shell-input", { id: pre.shell || "", line }, event.submitter, form).then((done) => done && form.reset());
    } else if (form.dataset.do) {
      event.preventDefault();
      act(form.dataset.do, new FormData(form), event.submitter, form).then((done) => done && form.reset());
    } else if (form.dataset.go) {
      event.preventDefault();
      go(form.dataset.go + "?" + new URLSearchParams(new FormData(form)), true);
    }
  });

  // enter signs in, and reports whether the device took the code. A sign-in that there is stays if it did not.
  async function enter(code) {
    $("sign-in-error").textContent = "";
    let why = "The device did not answer. Try again.";
    try {
      const answer = await fetch("/api/sign-in", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }), signal: AbortSignal.timeout(silent) });
      const result = await answer.json();
      if (answer.ok) {
        if (token()) request("sign-out", { method: "POST" }).catch(() => {}); // of the sign-in that this one replaces
        localStorage.setItem(key, result.token);
        $("code").value = "";
        go(location.pathname + location.search, false);
        return true;
      }
      why = words(result);
    } catch (e) {}
    if (token()) {
      go(location.pathname + location.search, false);
      notice("You stay signed in as before: " + why, true);
      return false;
    }
    $("sign-in-error").textContent = why;
    $("code").select();
    return false;
  }

  $("notice-close").addEventListener("click", () => notice(""));
  $("menu").addEventListener("click", () => {
    const open = $("nav").classList.toggle("open");
    $("menu").setAttribute("aria-expanded", String(open));
  });
  addEventListener("popstate", (event) => go(location.pathname + location.search, false, event.state?.y || 0));
  addEventListener("storage", (event) => event.key === key && !event.newValue && signedOut());
  addEventListener("online", fresher);
  let hiding = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) {
      if (!main.querySelector("pre[data-open]")) hiding = setTimeout(() => stream?.abort(), hiddenFor);
    } else if (stream?.signal.aborted && shown && token()) live(shown, stream.first?.() || null);
    else fresher();
  });
  history.scrollRestoration = "manual";

  // A link from a QR code has the code behind "#", which browsers do not send to servers.
  // QR codes may be in capitals.
  const fragment = new URLSearchParams(location.hash.slice(1).replace(/^[A-Z]+=/, (name) => name.toLowerCase()));
  if (fragment.has("code")) {
    history.replaceState(null, "", location.pathname + location.search);
    if (!token()) {
      signedOut();
      $("code").value = fragment.get("code");
    }
    enter(fragment.get("code"));
    return;
  }
  go(location.pathname + location.search, false);
})();
