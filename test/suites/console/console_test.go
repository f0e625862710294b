// Package console tests the web console of a device from a neighbour, in a real browser, with pods at home and away.
package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"rivulet/appliance/ui/webconsole"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/browser"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b = s.Devices["a"], s.Devices["b"]
		if err := labtest.PeeredWithImage(ctx, s); err != nil {
			return err
		}
		_, err := a.Run(ctx, configure("true")...)
		return err
	}}
	a, b *lab.Device
)

// configure is a command that switches the console on or off.
func configure(to string) []string {
	return []string{"sh", "-c", `umask 077; mkdir -p /etc/rivulet; echo "console: ` + to + `" > /etc/rivulet/config.yaml; rivulet config reload`}
}

const address = "10.77.0.11:7443" // of a

func TestMain(m *testing.M) {
	suite.Main(m, "console", lab.Options{Devices: 2})
}

// from passes connections of a browser on this machine on as connections of a device to the console.
func from(t *testing.T, ctx context.Context, d *lab.Device) (base string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				far, err := d.Dial(ctx, "tcp", address)
				if err != nil {
					return
				}
				defer far.Close()
				var both sync.WaitGroup
				both.Go(func() { _, _ = io.Copy(far, near); far.Close() })
				both.Go(func() { _, _ = io.Copy(near, far); near.Close() })
				both.Wait()
			}()
		}
	}()
	return "https://" + l.Addr().String()
}

// signIn opens the console with a code of a role.
func signIn(t *testing.T, ctx context.Context, w *browser.Browser, base, role string) {
	t.Helper()
	var made webconsole.Login
	if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "console", "login", "--role", role, "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	w.Do("sign in by the link", chromedp.Navigate(base+"/#code="+made.Code), chromedp.WaitVisible("main h1"))
}

// open opens a page from the menu of the browser's address line.
func open(w *browser.Browser, base, path string) {
	w.Do(path, chromedp.Navigate(base+path))
	w.Wait(path+" is shown", `document.querySelector("main h1") !== null`)
}

// press clicks a button; yes confirms the question, which has the word.
func press(w *browser.Browser, selector string) {
	w.Do(selector, chromedp.WaitVisible(selector), chromedp.Click(selector))
}

func yes(t *testing.T, w *browser.Browser, word string) {
	t.Helper()
	w.Wait("the question has "+word, fmt.Sprintf(`document.querySelector("dialog").open && document.querySelector("#ask-text").textContent.includes(%q)`, word))
	press(w, "#ask-yes")
}

// TestConsole is the way of an owner from the first page on: see, offload, look into a pod that is away, give back, end.
func TestConsole(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	base, w := from(t, ctx, b), browser.Open(t)
	signIn(t, ctx, w, base, "admin")
	w.Wait("the device is ready", `document.querySelector("#verdict").textContent.startsWith("ready")`)
	open(w, base, "/map")
	w.Wait("the neighbour is on the map", `[...document.querySelectorAll("svg.map text")].some((e) => e.textContent === "b") && document.querySelector("main tbody").textContent.includes("Connected")`)

	// A namespace is offloaded, and its pods are away.
	labtest.Kubectl(t, ctx, a, "create", "namespace", "shop")
	open(w, base, "/workloads")
	w.Wait("the namespace is there", `[...document.querySelectorAll("form[data-do=offload] input")].some((e) => e.value === "shop")`)
	browser.Value[bool](w, `(() => { const f = [...document.querySelectorAll("form[data-do=offload]")].find((f) => f.elements.namespace.value === "shop"); f.elements.when.value = "remote"; f.requestSubmit(); return true; })()`)
	w.Wait("it says so", `document.querySelector("#notice").textContent.includes("shop")`)
	if got := labtest.Kubectl(t, ctx, a, "get", "namespace", "shop", "-o", `jsonpath={.metadata.labels.rivulet\.dev/offload}`); got != "remote" {
		t.Errorf("the label is %q", got)
	}
	labtest.Kubectl(t, ctx, a, "create", "deployment", "web", "-n", "shop", "--image="+mainjob.Image)
	labtest.Kubectl(t, ctx, a, "create", "deployment", "broken", "-n", "shop", "--image=nowhere.example/x:1")
	w.Wait("the pod is away, on b", `[...document.querySelectorAll("main h2")].some((e) => e.textContent.includes("Away, on b")) && [...document.querySelectorAll("main tbody tr")].some((e) => e.textContent.includes("shop/web-") && e.textContent.includes("Running"))`)
	w.Wait("the other one has a reason", `[...document.querySelectorAll("main tbody tr")].some((e) => e.textContent.includes("shop/broken-") && e.textContent.includes("What to do"))`)

	// Its log and a shell in it, through the tunnel.
	pod := labtest.Kubectl(t, ctx, a, "get", "pods", "-n", "shop", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}")
	open(w, base, "/pods/shop/"+pod)
	press(w, `a[href^="?show=shell"]`)
	w.Wait("the shell is open", `document.querySelector("pre[data-stream]")?.shell?.length > 0`)
	w.Do("a command", chromedp.SendKeys("#line", "echo sum is $((40+2)); hostname\r"))
	w.Wait("its output", fmt.Sprintf(`document.querySelector("pre[data-stream]").textContent.includes("sum is 42") && document.querySelector("pre[data-stream]").textContent.includes(%q)`, pod))
	open(w, base, "/pods/shop/"+pod)
	press(w, `a[href^="?show=log"]`)
	w.Wait("its log", `document.querySelector("pre[data-stream]")?.textContent.length > 10`)
	press(w, `button[data-do="trace"]`)
	w.Wait("the way through the tunnel", `document.querySelector("dialog").open && document.querySelector("dialog").textContent.includes("tunnel")`)
	w.Do("close", chromedp.Click(`dialog button[value="no"]`))

	// The peer is cordoned, drained, and used again.
	var id string
	for _, p := range labtest.Status(t, ctx, a).Peers {
		id = string(p.ID)
	}
	open(w, base, "/peers/"+id)
	press(w, `button[data-do="cordon"]`)
	w.Wait("it is cordoned", `document.querySelector("button[data-do=uncordon]") !== null`)
	if got := labtest.Kubectl(t, ctx, a, "get", "node", "b", "-o", "jsonpath={.spec.unschedulable}"); got != "true" {
		t.Errorf("unschedulable is %q", got)
	}
	press(w, `button[data-do="drain"]`)
	yes(t, w, "shop/"+pod)
	await.True(t, time.Minute, "the pod is gone", func() bool {
		return !strings.Contains(labtest.Kubectl(t, ctx, a, "get", "pods", "-n", "shop", "-o", "name"), pod)
	})
	press(w, `button[data-do="uncordon"]`)
	await.True(t, time.Minute, "pods go there again", func() bool {
		return labtest.Kubectl(t, ctx, a, "get", "node", "b", "-o", "jsonpath={.spec.unschedulable}") == ""
	})

	// A namespace is opened to it, and closed.
	opened := func() string {
		return labtest.Kubectl(t, ctx, a, "get", "namespace", "shop", "-o", `jsonpath={.metadata.labels.rivulet\.dev/open-to}`)
	}
	w.Do("a namespace", chromedp.SendKeys("#what", "shop"))
	press(w, `form[data-do="open"] button`)
	await.True(t, time.Minute, "it is open", func() bool { return opened() == id })
	press(w, `button[data-do="close"]`)
	yes(t, w, "Shop is closed")
	await.True(t, time.Minute, "it is closed", func() bool { return opened() == "" })

	// A virtual cluster from creation to its kubeconfig.
	open(w, base, "/vclusters")
	w.Do("a name", chromedp.SendKeys("#vc", "ann"))
	press(w, `form[data-do="vcluster-create"] button`)
	w.Wait("it can be used", `document.querySelector("#notice").textContent.includes("ann can be used")`)
	w.Wait("it is there", `document.querySelector("main tbody").textContent.includes("ann") && document.querySelector("button[data-do=vcluster-sleep]") !== null`)
	if file := fetched(t, w, "vcluster-kubeconfig", "name=ann"); !strings.Contains(file, "kind: Config") || !strings.Contains(file, "PRIVATE KEY") && !strings.Contains(file, "client-key-data") {
		t.Errorf("the kubeconfig: %.200s", file)
	}
	press(w, `button[data-do="vcluster-sleep"]`)
	w.Wait("it sleeps", `document.querySelector("main tbody").textContent.includes("Asleep")`)

	// What a person keeps: a backup that is one, and an archive without secrets.
	if raw := fetched(t, w, "backup", "passphrase="); len(raw) < 10_000 || !strings.HasPrefix(raw, "(\u00b5/\u00fd") { // zstd
		t.Errorf("the backup has %d bytes: %.100q", len(raw), raw)
	}
	if raw := fetched(t, w, "backup", "passphrase=correct horse"); len(raw) < 10_000 || !strings.Contains(raw[:200], "age-encryption.org") {
		t.Errorf("the encrypted backup has %d bytes: %.100q", len(raw), raw)
	}
	if raw := fetched(t, w, "support", ""); len(raw) < 1000 || raw[0] != 0x1f {
		t.Errorf("the support archive has %d bytes", len(raw))
	}

	// The peering ends, after its consequences, and is approved again.
	open(w, base, "/peers/"+id)
	press(w, `button[data-do="unpeer"]`)
	yes(t, w, "peering with b ends")
	state := func() peer.State {
		for _, p := range labtest.Status(t, ctx, a).Peers {
			if string(p.ID) == id {
				return p.State
			}
		}
		return ""
	}
	await.True(t, time.Minute, "b is no peer", func() bool { return state().Apart() })
	open(w, base, "/peers/"+id)
	press(w, `button[data-do="approve"]`)
	await.True(t, time.Minute, "b is a peer again", func() bool { return state() == peer.Connected })

	// All sign-ins end at once on the command line.
	labtest.Must(t, ctx, a, "rivulet", "console", "end", "--all")
	w.Wait("the sign-in is asked for again", `document.querySelector("#sign-in").checkVisibility()`)
}

// fetched is what a download of an action gives, as Latin-1.
func fetched(t *testing.T, w *browser.Browser, action, form string) string {
	t.Helper()
	browser.Value[bool](w, fmt.Sprintf(`(async () => {
  window.fetched = undefined;
  const send = (more) => fetch("/api/do/%s", { method: "POST", headers: { Authorization: "Bearer " + localStorage.getItem("rivulet-console") }, body: new URLSearchParams(%q + more) });
  let out = await (await send("")).json();
  if (out.confirm) out = await (await send("&confirmed=" + out.token)).json();
  const got = new Uint8Array(await (await fetch(out.download)).arrayBuffer());
  let text = "";
  for (let i = 0; i < Math.min(got.length, 200000); i++) text += String.fromCharCode(got[i]);
  window.fetched = text;
})(), true`, action, form))
	w.Wait(action, `window.fetched !== undefined`)
	return browser.Value[string](w, `window.fetched`)
}

// TestWhoReachesIt: a neighbour on the LAN before a sign-in, a viewer, and a pod, which has no way at all.
func TestWhoReachesIt(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	curl := func(d *lab.Device, args ...string) string {
		return labtest.On(t, ctx, d, append([]string{"curl", "-sk", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}"}, args...)...).Out
	}
	for path, want := range map[string]string{"/": "200", "/api/page/map": "401", "/api/download/x": "404", "/api/stream/shell/kube-system/x": "401"} {
		if got := curl(b, "https://"+address+path); got != want {
			t.Errorf("a neighbour gets %s of %s, want %s", got, path, want)
		}
	}
	if got := curl(b, "-H", "Host: evil.example", "https://"+address+"/"); got != "421" {
		t.Errorf("by another name: %s", got)
	}
	base, w := from(t, ctx, b), browser.Open(t)
	signIn(t, ctx, w, base, "view")
	open(w, base, "/map")
	if browser.Value[int](w, `document.querySelectorAll("main button").length`) > 0 {
		t.Error("a viewer has buttons")
	}
	labtest.Kubectl(t, ctx, a, "create", "namespace", "probe")
	labtest.Kubectl(t, ctx, a, "run", "probe", "-n", "probe", "--image="+mainjob.Image, "--command", "--", "sleep", "3600")
	labtest.Kubectl(t, ctx, a, "wait", "-n", "probe", "--for=condition=Ready", "pod/probe", "--timeout=90s")
	for _, to := range []string{address, "[fe80::1]:7443", labtest.Status(t, ctx, a).NodeAddress + ":7443"} {
		if r := labtest.On(t, ctx, a, "rivulet", "kubectl", "exec", "-n", "probe", "probe", "--", "wget", "-T", "4", "-q", "-O", "-", "--no-check-certificate", "https://"+to+"/"); r.Code == 0 {
			t.Errorf("a pod reads %s: %.100s", to, r.Out)
		}
	}

	// The owner switches it off, and on again: open pages end, and the sign-in goes on.
	labtest.Must(t, ctx, a, configure("false")...)
	await.True(t, time.Minute, "the port is closed", func() bool { return curl(b, "https://"+address+"/") == "000" })
	w.Wait("the page says so", `!document.querySelector("#offline").hidden`)
	labtest.Must(t, ctx, a, configure("true")...)
	w.Wait("the page goes on", `document.querySelector("#offline").hidden && document.querySelector("main h1").textContent === "Map"`)
}
