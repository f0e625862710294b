package webconsole

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"rivulet/test/harness/await"
	"rivulet/test/harness/browser"
)

// testNow is the time that pages show in pictures.
var testNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// paths are those of all pages.
func paths() (out []string) {
	for _, p := range pages {
		out = append(out, strings.NewReplacer("{id}", peerB, "{namespace}", "shop", "{name}", "broken").Replace(p.pattern))
	}
	return out
}

// opened is a browser that is signed in, at the first page.
func opened(t *testing.T, d *testDevice, r Role) *browser.Browser {
	t.Helper()
	b := browser.Open(t)
	made, err := d.login(r)
	if err != nil {
		t.Fatal(err)
	}
	b.Do("sign in by the link", chromedp.Navigate(made.Link), chromedp.WaitVisible("main h1"))
	return b
}

// page opens a page, and waits until it is there.
func open(b *browser.Browser, d *testDevice, path string) {
	b.Do(path, chromedp.Navigate(d.base+path))
	b.Wait(path+" is shown", `document.querySelector("main h1") !== null && document.fonts.status === "loaded"`)
}

// withKubernetes is a device whose engine answers.
func withKubernetes(t *testing.T) *testDevice {
	t.Helper()
	d := newDevice(t)
	cfg := home(t)
	d.setREST(cfg)
	d.now = func() time.Time { return testNow }
	d.access.now = d.now
	return d
}

// contrast returns the texts of a page with too little contrast for WCAG 2.2 AA, 4.5, or 3 for large ones.
const contrast = `(() => {
  const rgb = (c) => c.match(/[\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return rgb(getComputedStyle(document.body).backgroundColor); };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.closest("svg")) continue;
    const s = getComputedStyle(e), a = lum(rgb(s.color)), b = lum(back(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large = parseFloat(s.fontSize) >= 24 || (parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push(e.tagName + " " + e.textContent.trim().slice(0, 40) + " " + ratio.toFixed(2));
  }
  return bad;
})()`

// names returns what a screen reader or a keyboard cannot use.
const names = `(() => {
  const bad = [];
  const shown = (e) => e.checkVisibility();
  for (const e of document.querySelectorAll("button,a[href]")) if (shown(e) && !(e.textContent.trim() || e.getAttribute("aria-label"))) bad.push("no name: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("input:not([type=hidden]),select,textarea")) if (shown(e) && !e.labels.length && !e.getAttribute("aria-label")) bad.push("no label: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("[role=img],svg[viewBox]")) if (shown(e) && !e.getAttribute("aria-label") && !e.hasAttribute("aria-hidden")) bad.push("no description: " + e.outerHTML.slice(0, 80));
  if (document.querySelectorAll("h1").length < 1) bad.push("no h1");
  if (!document.documentElement.lang) bad.push("no language");
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) bad.push("two elements have the id " + id);
  for (const e of document.querySelectorAll("button,input:not([type=hidden]),select")) { const r = e.getBoundingClientRect(); if (shown(e) && (r.height < 24 || r.width < 24)) bad.push("small: " + e.outerHTML.slice(0, 80)); }
  for (const e of document.querySelectorAll("[tabindex]")) if (e.tabIndex > 0) bad.push("its own order: " + e.outerHTML.slice(0, 80));
  return bad;
})()`

// Contrast, names and sizes of what can be pressed, in light and dark.
func TestAccessibility(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	for _, dark := range []bool{false, true} {
		b.Do("the scheme", browser.Dark(dark), chromedp.EmulateViewport(1280, 900))
		for _, path := range paths() {
			open(b, d, path)
			for _, bad := range browser.Value[[]string](b, contrast) {
				t.Errorf("%s, dark %v: too little contrast: %s", path, dark, bad)
			}
			for _, bad := range browser.Value[[]string](b, names) {
				t.Errorf("%s: %s", path, bad)
			}
		}
	}
}

// A person with a keyboard only: the first stop skips to the content, the menu follows, Enter opens a page, and focus is
// in its content.
func TestKeyboard(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/")
	b.Do("Tab", chromedp.KeyEvent("\t"))
	if got := browser.Value[string](b, `document.activeElement.className`); got != "skip" {
		t.Errorf("the first stop is %q", got)
	}
	for range 3 {
		b.Do("Tab", chromedp.KeyEvent("\t"))
	}
	if got := browser.Value[string](b, `document.activeElement.textContent`); got != "Map" {
		t.Errorf("after the name and the overview comes %q", got)
	}
	b.Do("Enter", chromedp.KeyEvent("\r"))
	b.Wait("the map", `document.querySelector("main h1")?.textContent === "Map" && location.pathname === "/map"`)
	b.Wait("focus is in the content", `document.activeElement.id === "main"`)
	b.Do("back", chromedp.NavigateBack())
	b.Wait("the overview is back", `location.pathname === "/" && document.querySelector("main h1")?.textContent.startsWith("pi")`)
}

// press clicks a button of an action.
func press(b *browser.Browser, selector string) {
	b.Do(selector, chromedp.Click(selector))
}

// Buttons do what they are for: the supervisor is asked, after a question where something ends.
func TestButtons(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	asked := func(what, want string) {
		t.Helper()
		var done []string
		await.True(t, browser.Limit, what, func() bool { done = d.did(); return len(done) > 0 })
		if !strings.HasPrefix(done[0], want) {
			t.Errorf("%s: %q", what, done)
		}
	}
	open(b, d, "/peers/"+strings.Repeat("d", 32))
	press(b, `button[data-do="approve"]`)
	asked("approve", "POST /v1/peers/approve "+`{"peer":"`+strings.Repeat("d", 32))

	open(b, d, "/people")
	press(b, `button[data-do="kubeconfig-revoke"]`)
	b.Wait("the question", `document.querySelector("dialog").open && document.querySelector("#ask-text").textContent.includes("anna ends at once")`)
	b.Do("no", chromedp.Click(`dialog button[value="no"]`))
	b.Wait("the question is closed", `!document.querySelector("dialog").open`)
	if done := d.did(); len(done) > 0 {
		t.Errorf("after a no: %v", done)
	}
	press(b, `button[data-do="kubeconfig-revoke"]`)
	b.Do("yes", chromedp.WaitVisible(`#ask-yes`), chromedp.Click(`#ask-yes`))
	asked("revoke", "DELETE /v1/kubeconfigs/anna")

	open(b, d, "/vclusters")
	press(b, `button[data-do="vcluster-sleep"]`)
	asked("sleep", "POST /v1/vclusters/ann/sleep")
	b.Do("a name", chromedp.SendKeys("#vc", "carl"))
	press(b, `form[data-do="vcluster-create"] button`)
	asked("create", `POST /v1/vclusters {"name":"carl"`)

	open(b, d, "/")
	press(b, `button[data-do="fix"]`)
	asked("repair", "POST /v1/doctor/fixes/host-firewall")

	open(b, d, "/pods/shop/broken")
	press(b, `button[data-do="trace"]`)
	b.Wait("the way, hop by hop", `document.querySelector("dialog").open && document.querySelectorAll("dialog li").length === 2 && document.querySelector("dialog").textContent.includes("rivulet image push FILE")`)

	open(b, d, "/invite")
	b.Do("a code", chromedp.SendKeys("#invite", "AAAA-BBBB"))
	press(b, `form[data-do="join"] button`)
	asked("join", `POST /v1/invites/accept {"invite":"AAAA-BBBB"`)

	open(b, d, "/people")
	press(b, `form[data-do="code"] button`)
	b.Wait("the code and its picture", `document.querySelector("dialog").open && /^([0-9A-Z]{4}-){3}[0-9A-Z]{4}$/.test(document.querySelector("dialog .code").textContent) && document.querySelector("dialog svg.qr") !== null`)
}

// A sign-in by typing, a wrong code, signing out in one tab ends the other one, and a link of a former code does nothing.
func TestSignInInABrowser(t *testing.T) {
	d := withKubernetes(t)
	b := browser.Open(t)
	b.Do("the first page", chromedp.Navigate(d.base+"/map"), chromedp.WaitVisible("#code"))
	if browser.Value[bool](b, `document.querySelector("header").checkVisibility()`) {
		t.Error("the menu is shown before the sign-in")
	}
	b.Do("a wrong code", chromedp.SendKeys("#code", "0000-0000-0000-0000\r"))
	b.Wait("an error with a cure", `document.querySelector("#sign-in-error").textContent.includes("rivulet console login")`)
	browser.Value[string](b, `document.querySelector("#code").value = ""`)
	made, err := d.login(Operate)
	if err != nil {
		t.Fatal(err)
	}
	b.Do("the code", chromedp.SendKeys("#code", strings.ToLower(made.Code)+"\r"), chromedp.WaitVisible("main h1"))
	if got := browser.Value[string](b, `location.pathname + document.querySelector("main h1").textContent`); got != "/mapMap" {
		t.Errorf("after the sign-in: %q", got)
	}
	if got := browser.Value[[]string](b, `[...document.querySelectorAll("nav a")].filter((a) => a.checkVisibility()).map((a) => a.textContent)`); slices.Contains(got, "People") || !slices.Contains(got, "Invite") {
		t.Errorf("the menu of operate: %v", got)
	}
	if browser.Value[string](b, `document.cookie`) != "" {
		t.Error("there is a cookie")
	}
	other := b.Tab()
	open(other, d, "/device")
	press(other, `button[data-do="leave"]`)
	for _, tab := range []*browser.Browser{other, b} {
		tab.Wait("it is signed out", `document.querySelector("#sign-in").checkVisibility() && document.querySelector("main").textContent === ""`)
	}
	b.Do("the old link", chromedp.Navigate(made.Link), chromedp.WaitVisible("#sign-in-error"))
	b.Wait("it is refused", `document.querySelector("#sign-in-error").textContent !== ""`)
}

// A page changes by itself when the device does, and keeps what a person types meanwhile.
func TestPagesStayLive(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/vclusters")
	b.Do("typing", chromedp.SendKeys("#vc", "half-a-na"))
	d.answer("GET /v1/vclusters", json.RawMessage(`[{"name": "fresh", "state": "Awake", "memory": 1, "datastore": 1}]`))
	b.Wait("the page has changed", `document.querySelector("main tbody").textContent.includes("fresh") && !document.querySelector("main tbody").textContent.includes("ann")`)
	if got := browser.Value[string](b, `document.querySelector("#vc").value + "|" + document.activeElement.id`); got != "half-a-na|vc" {
		t.Errorf("the form has %q", got)
	}
}

// Nothing that others choose runs as a script, on any page, and the log of a pod is text.
func TestNothingForeignRuns(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	b.Do("a trap", browser.OnNewDocument(`window.alert = () => { document.title = "ran"; window.ran = true; }`))
	for _, path := range append(paths(), "/pods/shop/broken?show=log&container=web", "/workloads?namespace=%3Cscript%3Ealert(5)%3C/script%3E", "/peers/"+strings.Repeat("d", 32)) {
		open(b, d, path)
		if browser.Value[bool](b, `window.ran === true || document.querySelectorAll("main script, main img, main b > script").length > 0`) {
			t.Errorf("%s runs what others wrote", path)
		}
	}
	open(b, d, "/pods/shop/web-1")
	press(b, `a[href^="?show=log"]`)
	b.Wait("the log as text", `document.querySelector("pre[data-stream]").textContent.includes("started <b>bold</b>")`)
}
