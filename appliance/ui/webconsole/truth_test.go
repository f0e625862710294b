package webconsole

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/browser"
)

// wire passes connections to a device until it is cut: then no byte passes, and nobody is told.
type wire struct {
	l   net.Listener
	cut atomic.Bool

	mu   sync.Mutex
	open []net.Conn
}

// mend lets bytes pass again. Connections that have lost some are of no use, and end.
func (w *wire) mend() {
	w.cut.Store(false)
	w.end()
}

func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.open {
		c.Close()
	}
	w.open = nil
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{l: l}
	var wg sync.WaitGroup
	pass := func(from, to net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if w.cut.Load() {
				continue
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.open = append(w.open, in, out)
			w.mu.Unlock()
			wg.Go(func() { pass(in, out) })
			wg.Go(func() { pass(out, in) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.end()
		wg.Wait()
	})
	return w
}

// patience lets a test end the script's long waits for a byte: window.late makes them end now.
const patience = `{
  const wait = window.setTimeout, end = window.clearTimeout;
  window.setTimeout = (f, ms, ...rest) => {
    if (ms !== 40000) return wait(f, ms, ...rest);
    const one = { over: false };
    const poll = () => one.over || (window.late ? f() : wait(poll, 50));
    wait(poll, 50);
    return one;
  };
  window.clearTimeout = (one) => (one && one.over === false ? (one.over = true) : end(one));
}`

// A device whose packets are lost sends no end of a connection: the page says since when it has heard nothing, is paler,
// and goes on when it hears something again.
func TestADeviceThatFallsSilent(t *testing.T) {
	d := withKubernetes(t)
	made, err := d.login(Admin)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, strings.TrimPrefix(d.base, "https://"))
	base := "https://" + w.l.Addr().String()
	b := browser.Open(t)
	b.Do("patience", browser.OnNewDocument(patience))
	b.Do("sign in", chromedp.Navigate(base+"/#code="+made.Code), chromedp.WaitVisible("main h1"))
	w.cut.Store(true)
	browser.Value[bool](b, `window.late = true`)
	b.Wait("it says since when", `!document.querySelector("#offline").hidden && /since \d/.test(document.querySelector("#offline").textContent) && document.querySelector("main").classList.contains("old")`)
	browser.Value[bool](b, `window.late = false; true`)
	w.mend()
	b.Wait("the page goes on", `document.querySelector("#offline").hidden && !document.querySelector("main").classList.contains("old")`)
}

// An error of a page is shown while it is true, beside what was known; it goes by itself, and not before.
func TestAnErrorOfAPageIsShownWhileItIsTrue(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/vclusters")
	d.fail("GET /v1/vclusters", "the disk is full; delete something")
	b.Wait("the error is there", `document.querySelector("#failed").textContent.includes("the disk is full") && document.querySelector("main").classList.contains("old") && document.querySelector("main").textContent.includes("ann")`)
	press(b, "main h1")
	if browser.Value[bool](b, `document.querySelector("#failed").hidden`) {
		t.Error("a click takes away an error that is still true")
	}
	d.fail("GET /v1/vclusters", "")
	b.Wait("it is gone", `document.querySelector("#failed").hidden && !document.querySelector("main").classList.contains("old")`)
	b.Do("a page that there is not", chromedp.Navigate(d.base+"/nowhere"))
	b.Wait("its title says so", `document.querySelector("main h1")?.textContent === "There is no such page" && document.title.startsWith("There is no such page")`)
}

// A refusal keeps what was typed, and stands at its field.
func TestARefusalStandsAtItsField(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/invite")
	d.fail("POST /v1/invites/accept", "the code has a mistake; copy it again")
	b.Do("a code", chromedp.SendKeys("#invite", "AAAA-BBBC"))
	press(b, `form[data-do="join"] button`)
	b.Wait("the refusal", `document.querySelector("form[data-do=join] .refusal")?.textContent.includes("copy it again") && document.querySelector("#invite").getAttribute("aria-describedby") === document.querySelector(".refusal").id`)
	if got := browser.Value[string](b, `document.querySelector("#invite").value + "|" + document.activeElement.id`); got != "AAAA-BBBC|invite" {
		t.Errorf("the form has %q", got)
	}
	d.answer("GET /v1/invites", json.RawMessage(`{"invites": []}`))
	b.Wait("the page has changed", `document.querySelector("main ul").textContent.includes("None")`)
	if got := browser.Value[string](b, `document.querySelector("#invite").value + document.querySelectorAll(".refusal").length`); got != "AAAA-BBBC1" {
		t.Errorf("after an update the form has %q", got)
	}
	d.fail("POST /v1/invites/accept", "")
	press(b, `form[data-do="join"] button`)
	b.Wait("it is accepted, and the page of the peer comes", `!document.querySelector(".refusal") && location.pathname.startsWith("/peers/")`)
}

// Taps on a button that works are one action.
func TestOneTapIsOneAction(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/vclusters")
	hold := make(chan struct{})
	d.hold("POST /v1/vclusters", hold)
	b.Do("a name", chromedp.SendKeys("#vc", "carl"))
	browser.Value[bool](b, `for (let i = 0; i < 5; i++) document.querySelector('form[data-do="vcluster-create"] button').click(); true`)
	close(hold)
	b.Wait("it is done", `document.querySelector("#notice-done").textContent.includes("can be used")`)
	if done := d.did(); len(done) != 1 {
		t.Errorf("the supervisor was asked %q", done)
	}
}

// A link with a code counts in a browser that is signed in: with a good one its role changes, with another it stays.
func TestACodeCountsWhoeverIsSignedIn(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, View)
	made, err := d.login(Admin)
	if err != nil {
		t.Fatal(err)
	}
	people := `[...document.querySelectorAll("nav a")].some((a) => a.checkVisibility() && a.textContent === "People")`
	if browser.Value[bool](b, people) {
		t.Fatal("a viewer sees People")
	}
	b.Do("away", chromedp.Navigate("about:blank"))
	b.Do("the link of an administrator", chromedp.Navigate(made.Link))
	b.Wait("it is one", people)
	b.Do("away", chromedp.Navigate("about:blank"))
	b.Do("the link again", chromedp.Navigate(made.Link))
	b.Wait("the code is refused, and the sign-in stays", `document.querySelector("#notice-failed").textContent.includes("You stay signed in") && `+people)
}

// What comes and goes above does not take the focus, nor make one button another.
func TestButtonsStayThemselves(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/vclusters")
	browser.Value[bool](b, `window.mine = document.querySelector('button[data-do="vcluster-kubeconfig"][data-name="ann"]'); window.mine.focus(); true`)
	d.answer("GET /v1/vclusters", json.RawMessage(`[{"name": "aaa", "state": "Paused", "paused": true, "memory": 1, "datastore": 1}, {"name": "ann", "state": "Paused", "paused": true, "memory": 1, "datastore": 1}]`))
	b.Wait("both are there", `document.querySelectorAll("main tbody tr").length === 2`)
	if !browser.Value[bool](b, `document.activeElement === window.mine && window.mine.dataset.name === "ann" && window.mine.dataset.do === "vcluster-kubeconfig"`) {
		t.Error("the focus or the button has changed: " + browser.Value[string](b, `document.activeElement.outerHTML.slice(0, 200)`))
	}
}

// A page that was loaded before an upgrade loads itself again, once.
func TestAnUpgradeReloadsOpenPages(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	b.Do("an old script", browser.OnNewDocument(`{
	  const n = Number(sessionStorage.getItem("loads") || 0) + 1;
	  sessionStorage.setItem("loads", n);
	  if (n === 1) document.addEventListener("readystatechange", () => { document.querySelector('meta[name="assets"]').content = "old"; }, { once: true });
	}`))
	open(b, d, "/map")
	b.Wait("it was loaded again", `sessionStorage.getItem("loads") === "2" && document.querySelector("main h1")?.textContent === "Map"`)
}

// A log that ends says why, and goes on with a button.
func TestALogGoesOn(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/pods/shop/web-1")
	press(b, `a[href^="?show=log"]`)
	b.Wait("its end, and a way to go on", `document.querySelector("pre[data-stream]")?.textContent.includes("[It has ended.]") && document.querySelector("pre + button")?.textContent === "Go on"`)
	if got := browser.Value[string](b, `document.activeElement.nodeName`); got != "PRE" {
		t.Errorf("the focus is in %s", got)
	}
	press(b, "pre + button")
	b.Wait("it went on", `document.querySelector("pre[data-stream]").textContent.split("[It has ended.]").length === 3`)
}

// The overview has all that can be read when an extra cannot.
func TestTheOverviewLivesWithoutItsExtras(t *testing.T) {
	d := newDevice(t)
	token := d.token(t, View)
	for at := range d.answers {
		if strings.Contains(at, "/v1/history") || strings.Contains(at, "/v1/doctor/fixes") {
			d.fail(at, "the history is unreadable")
		}
	}
	code, body, _ := d.do(t, http.MethodGet, "/api/page/", token, nil)
	if code != http.StatusOK || !strings.Contains(body, "Problems") || strings.Count(body, "Not shown now") != 2 {
		t.Errorf("%d %.2000s", code, body)
	}
}

// A thousand pods in a hundred namespaces fit the page, a part of each, and a filter finds the rest.
func TestManyWorkloadsFit(t *testing.T) {
	d := newDevice(t)
	client := fake.NewClientset()
	for i := range 110 {
		ns := fmt.Sprintf("namespace-with-a-name-%03d", i)
		if err := client.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			t.Fatal(err)
		}
		for j := range 10 {
			if err := client.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("a-pod-of-a-deployment-%d", j)}, Spec: corev1.PodSpec{NodeName: "pi", Containers: []corev1.Container{{Name: "web"}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 20 {
		name := fmt.Sprintf("a-target-%02d", i)
		if err := client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rivulet.dev/virtual-node": "true", "rivulet.dev/target": name}}}); err != nil {
			t.Fatal(err)
		}
	}
	d.cfg.Client = func() kubernetes.Interface { return client }
	token := d.token(t, Operate)
	page := func(query string) string {
		code, body, _ := d.do(t, http.MethodGet, "/api/page/workloads"+query, token, nil)
		if code != http.StatusOK {
			t.Fatalf("%s: %d %.500s", query, code, body)
		}
		return body
	}
	first := page("")
	if n := strings.Count(first, "a-pod-of-a-deployment-"); !strings.Contains(first, "Next") || len(first) > maxPage*3/4 || n < 100 {
		t.Errorf("%d bytes, %d pods", len(first), n)
	}
	if body := page("?from=1000"); !strings.Contains(body, "namespace-with-a-name-109/a-pod-of-a-deployment-9") || !strings.Contains(body, "Before") {
		t.Errorf("the last page: %.2000s", body)
	}
	if body := page("?filter=name-042"); !strings.Contains(body, "namespace-with-a-name-042/a-pod-of-a-deployment-9") || strings.Contains(body, "name-043") {
		t.Errorf("filtered: %.2000s", body)
	}
}

// What would end somebody's access asks first, whatever the page says.
func TestNothingOfOthersEndsUnasked(t *testing.T) {
	d := newDevice(t)
	token := d.token(t, Admin)
	d.answer("GET /v1/vclusters/ann", json.RawMessage(`{"name": "ann", "pods": 3}`))
	d.answer("GET /v1/vclusters/bob", json.RawMessage(`{"name": "bob", "owner": {"namespace": "default", "name": "bob"}}`))
	if code, body, _ := d.do(t, http.MethodPost, "/api/do/vcluster-delete", token, map[string][]string{"name": {"bob"}}); code == http.StatusOK || !strings.Contains(body, "delete virtualcluster bob") {
		t.Errorf("one of an object: %d %s", code, body)
	}
	d.answer("GET /v1/kubeconfigs", json.RawMessage(`{"kubeconfigs": [{"user": "owner", "vcluster": "ann", "state": "active", "expires": "2026-06-01T10:00:00Z"}]}`))
	for action, form := range map[string]map[string][]string{
		"vcluster-kubeconfig": {"name": {"ann"}}, "vcluster-delete": {"name": {"ann"}}, "session-end": {"id": {d.access.list()[0].ID}}, "invite-revoke": {"id": {"3f2a"}}, "backup": {},
	} {
		code, body, _ := d.do(t, http.MethodPost, "/api/do/"+action, token, form)
		if done := d.did(); code != http.StatusOK || !strings.Contains(body, `"confirm"`) || len(done) > 0 {
			t.Errorf("%s: %d %s, %v", action, code, body, done)
		}
	}
	if _, ok := d.access.find(token); !ok {
		t.Error("the sign-in has ended")
	}
}

// An open page is a use of its sign-in, and one that only reads is renewed by an administrator.
func TestAScreenStaysSignedIn(t *testing.T) {
	a, now := accessAt(&memory{})
	token, s, err := a.signIn(codeFor(t, a, View), "192.0.2.7", "")
	if err != nil {
		t.Fatal(err)
	}
	for range 29 {
		*now = now.Add(24 * time.Hour)
		if !a.valid(s.ID) {
			t.Fatalf("it ends at %v", *now)
		}
	}
	c := &Console{now: func() time.Time { return *now }, access: a}
	if text := c.ending(s); !strings.Contains(text, "ends in 24 h") {
		t.Errorf("a day before its end: %q", text)
	}
	if err := a.renew(s.ID); err != nil {
		t.Fatal(err)
	}
	*now = now.Add(6 * 24 * time.Hour)
	if _, ok := a.find(token); !ok {
		t.Error("it has ended though it was renewed")
	}
	_, admin, err := a.signIn(codeFor(t, a, Admin), "192.0.2.8", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.renew(admin.ID); err == nil {
		t.Error("a sign-in with all rights is renewed without a code")
	}
	await.True(t, time.Second, "the idle one ends", func() bool { *now = now.Add(sessionIdle); return !a.valid(s.ID) })
}

// A question that comes while another is open answers that one with no, and works itself.
func TestTwoQuestionsAtOnce(t *testing.T) {
	d := withKubernetes(t)
	b := opened(t, d, Admin)
	open(b, d, "/people")
	hold := make(chan struct{})
	d.answer("GET /v1/vclusters/ann", json.RawMessage(`{"name": "ann"}`))
	d.hold("GET /v1/vclusters/ann", hold)
	browser.Value[bool](b, `{ const slow = document.createElement("button"); slow.id = "slow"; slow.dataset.do = "vcluster-delete"; slow.dataset.name = "ann"; slow.textContent = "Delete"; slow.dataset.own = ""; document.body.append(slow); slow.click(); }
		document.querySelector('button[data-do="kubeconfig-revoke"]').click(); true`)
	b.Wait("the first question", `document.querySelector("dialog").open && document.querySelector("#ask-text").textContent.includes("anna ends at once")`)
	close(hold)
	b.Wait("the second question", `document.querySelector("dialog").open && document.querySelector("#ask-text").textContent.includes("ann of")`)
	b.Wait("the first button is free", `!document.querySelector('button[data-do="kubeconfig-revoke"]').hasAttribute("aria-busy")`)
	b.Do("yes", chromedp.Click(`#ask-yes`))
	await.True(t, browser.Limit, "what was asked last is done", func() bool {
		done := d.did()
		return len(done) == 1 && strings.HasPrefix(done[0], "DELETE /v1/vclusters/ann")
	})
}

// A pod of a virtual cluster of this device is shown by its owner and its name inside, on both pages.
func TestAPodOfAVirtualClusterIsNamed(t *testing.T) {
	d := newDevice(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "twin", Name: "web-0-abc", Labels: map[string]string{policy.OriginLabel: "anna"},
		Annotations: map[string]string{policy.HomeNamespaceAnnotation: "default", policy.HomePodAnnotation: "web-0"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true}}}}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "twin"}}, pod)
	d.cfg.Client = func() kubernetes.Interface { return client }
	d.answer("GET /v1/status", json.RawMessage(`{"name": "pi", "consumers": [{"id": "anna", "name": "db-anna", "vcluster": true, "course": "default/db"}]}`))
	token := d.token(t, View)
	for _, page := range []string{"workloads", "pods/twin/web-0-abc"} {
		code, body, _ := d.do(t, http.MethodGet, "/api/page/"+page, token, nil)
		if code != http.StatusOK || !strings.Contains(body, "anna (course db) default/web-0") || !strings.Contains(body, "twin/web-0-abc") {
			t.Errorf("%s: %d %.3000s", page, code, body)
		}
	}
}
