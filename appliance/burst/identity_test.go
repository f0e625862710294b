package burst

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/offload/target/external"
	"rivulet/offload/target/external/rewrite"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

func (o *told) ids() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.specs {
		out = append(out, s.ID)
	}
	return out
}

// TestOneNamespaceIsOneTarget: a namespace with two addresses is one target, and a change of the address deletes nothing.
func TestOneNamespaceIsOneTarget(t *testing.T) {
	server := apiserver.Start(t)
	u, err := url.Parse(server.Config.Host)
	must(t, err)
	type address struct {
		*line
		credential external.Credential
		raw        []byte
	}
	reach := func() (a address) {
		a.line = newLine(t, u.Host)
		a.raw = kubeconfigFile(t, "https://"+a.listener.Addr().String(), server.Config.CAData,
			&clientcmdapi.AuthInfo{ClientCertificateData: server.Config.CertData, ClientKeyData: server.Config.KeyData})
		a.credential, err = external.ReadCredential(a.raw, "", "", false)
		must(t, err)
		return a
	}
	vpn, public := reach(), reach()
	ctx := t.Context()
	room := corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	names := rewrite.Names{Cluster: cluster}
	_, err = server.Client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.Away("lab", "settings"),
		Labels:      map[string]string{rewrite.HomeLabel: cluster, rewrite.SpaceLabel: names.Space("lab")},
		Annotations: map[string]string{rewrite.NamespaceAnnotation: "lab", rewrite.NameAnnotation: "settings"}}}, metav1.CreateOptions{})
	must(t, err)
	stands := func() bool {
		_, err := server.Client.CoreV1().ConfigMaps("default").Get(ctx, names.Away("lab", "settings"), metav1.GetOptions{})
		return err == nil
	}

	t.Run("by hand", func(t *testing.T) {
		store, key := &memory{}, newKey(t)
		m, off, _ := manager(t, store, key)
		request := Request{Credential: vpn.credential, Settings: external.Settings{Name: "campus", Namespace: "default", Limits: room}}
		_, err := m.Add(ctx, request)
		must(t, err)
		before := off.ids()
		second := request
		second.Settings.Name, second.Credential = "public", public.credential
		if _, err := m.Add(ctx, second); err == nil || !strings.Contains(err.Error(), "is target campus already, by the address "+vpn.credential.Server) {
			t.Errorf("a second address: %v", err)
		}
		vpn.set(true)
		report, err := m.Add(ctx, second)
		must(t, err)
		if !strings.Contains(fmt.Sprint(report.Notes), "it is not known yet whether that is the namespace of another target, campus") || fmt.Sprint(off.ids()) != fmt.Sprint(before) {
			t.Errorf("a second address while the first does not answer: %v %v", report.Notes, off.ids())
		}
		vpn.set(false)
		_, err = m.Remove(ctx, "public", false)
		must(t, err)
		m, off, _ = manager(t, store, key) // a restart
		moved := request
		moved.Credential, moved.Replace = public.credential, true
		_, err = m.Add(ctx, moved)
		must(t, err)
		if now := off.ids(); fmt.Sprint(now) != fmt.Sprint(before) || len(m.List()) != 1 || m.List()[0].Server != public.credential.Server {
			t.Errorf("after the change of address: %v, was %v: %+v", now, before, m.List())
		}
		other := moved
		other.Settings.Namespace = "kube-public"
		if _, err := m.Add(ctx, other); err == nil || !strings.Contains(err.Error(), "remove it before that name is another's") {
			t.Errorf("another namespace under the name: %v", err)
		}
		if !stands() {
			t.Error("its objects were deleted")
		}
	})

	t.Run("of the configuration", func(t *testing.T) {
		path := func(name string, a address) string {
			file := filepath.Join(t.TempDir(), name)
			must(t, os.WriteFile(file, a.raw, 0o600))
			return file
		}
		entry := func(name, path string) config.Burst {
			return config.Burst{Name: name, Kubeconfig: path, Namespace: "default", Limits: config.BurstLimits{CPU: "2", Memory: "1Gi"}}
		}
		m, off, tracker := manager(t, &memory{}, newKey(t))
		first, second := path("first", vpn), path("second", public)
		public.set(true)
		m.Configure([]config.Burst{entry("first", first), entry("second", second)})
		if off.is() != "burst-first false" {
			t.Errorf("before both have answered: %s", off.is())
		}
		defer run(m)()
		await.Empty(t, time.Minute, "the first is known, the second is not", func(context.Context) string {
			m.mu.Lock()
			defer m.mu.Unlock()
			if !m.entries["first"].now.Known() || off.is() != "burst-first false" {
				return off.is()
			}
			return ""
		})
		public.set(false)
		m.wake()
		await.Empty(t, time.Minute, "the second is refused, with the name of the first", func(context.Context) string {
			m.wake()
			if p := tracker.Problems(); len(p) != 1 || p[0].Code != "burst-unusable" || p[0].Subject != "second" || !strings.Contains(p[0].Text, "is target first already") {
				return fmt.Sprint(p)
			}
			return ""
		})
		if off.is() != "burst-first true" {
			t.Errorf("of two addresses: %s", off.is())
		}

		before := off.ids()
		m.Configure([]config.Burst{entry("first", first)})
		public.set(true)
		must(t, os.WriteFile(first, public.raw, 0o600))
		m.Configure([]config.Burst{entry("first", first)})
		await.Empty(t, time.Minute, "a new address that does not answer changes nothing", func(context.Context) string {
			if p := tracker.Problems(); len(p) != 1 || p[0].Code != "burst-credential" || !strings.Contains(p[0].Text, public.credential.Server) || off.is() != "burst-first true" {
				return fmt.Sprint(p, off.is())
			}
			return ""
		})
		public.set(false)
		await.Empty(t, time.Minute, "it is used when it answers, for the same target", func(context.Context) string {
			m.wake()
			all := m.List()
			if len(all) != 1 || all[0].Server != public.credential.Server || fmt.Sprint(off.ids()) != fmt.Sprint(before) {
				return fmt.Sprintf("%+v %v", all, off.ids())
			}
			return ""
		})
		if !stands() {
			t.Error("its objects were deleted")
		}

		// It is removed while another address of it is used from now on: what it has there stays while that one is in use.
		m.Configure([]config.Burst{entry("third", path("third", vpn))})
		await.Empty(t, time.Minute, "what it has is kept", func(context.Context) string {
			m.wake()
			p := tracker.Problems()
			if len(p) != 1 || p[0].Code != "burst-left" || !strings.Contains(p[0].Text, "kept: target third may use that namespace") || off.is() != "burst-third true" {
				return fmt.Sprintf("%+v %s", p, off.is())
			}
			return ""
		})
		if !stands() {
			t.Error("the objects of a target in use were deleted")
		}
		m.Configure(nil)
		await.Empty(t, time.Minute, "with the last target its objects go", func(context.Context) string {
			m.wake()
			if all := m.List(); len(all) != 0 || stands() {
				return fmt.Sprint(all, stands())
			}
			return ""
		})
	})
}

// campus answers for namespace lab, with the UIDs that it is given; one without a UID may not be read.
type campus struct {
	*httptest.Server
	mu               sync.Mutex
	namespace, roots string
	cleaned          bool // what is there was listed for a cleanup
}

func newCampus(t *testing.T, namespace, roots string) *campus {
	t.Helper()
	c := &campus{namespace: namespace, roots: roots}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		uid := "none"
		switch r.URL.Path {
		case "/api/v1/namespaces/lab":
			uid = c.namespace
		case "/api/v1/namespaces/lab/configmaps/kube-root-ca.crt":
			uid = c.roots
		}
		w.Header().Set("Content-Type", "application/json")
		if uid == "none" {
			c.cleaned = true
			fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[]}`)
			return
		}
		if uid == "" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
			return
		}
		fmt.Fprintf(w, `{"metadata":{"uid":%q}}`, uid)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *campus) set(namespace, roots string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespace, c.roots = namespace, roots
}

func (c *campus) wasCleaned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cleaned
}

// write writes a kubeconfig of the campus.
func (c *campus) write(t *testing.T, path string) {
	t.Helper()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	must(t, os.WriteFile(path, kubeconfigFile(t, c.URL, authority, &clientcmdapi.AuthInfo{Token: "t"}), 0o600))
}

// entry is the campus as one of the configuration.
func (c *campus) entry(t *testing.T, name string) config.Burst {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	c.write(t, path)
	return config.Burst{Name: name, Kubeconfig: path, Namespace: "lab", Limits: config.BurstLimits{CPU: "2", Memory: "1Gi"}}
}

// bothUsed runs a manager with two campuses until both are used.
func bothUsed(t *testing.T, store Store, first, second *campus) (*Manager, *told, *health.Tracker, []config.Burst) {
	t.Helper()
	m, off, tracker := manager(t, store, newKey(t))
	all := []config.Burst{first.entry(t, "first"), second.entry(t, "second")}
	m.Configure(all)
	t.Cleanup(run(m))
	await.Empty(t, time.Minute, "both are used", func(context.Context) string {
		if off.is() != "burst-first,burst-second true" {
			return off.is()
		}
		return ""
	})
	return m, off, tracker, all
}

// TestALyingCampusUnseatsNoTarget: a campus that tells the identity of another one later changes nothing, and nothing is
// written.
func TestALyingCampusUnseatsNoTarget(t *testing.T) {
	first, second := newCampus(t, "1", "1r"), newCampus(t, "2", "2r")
	store := &memory{}
	m, off, _, _ := bothUsed(t, store, first, second)
	must(t, m.save())
	before, err := store.Note(note)
	must(t, err)
	ids := off.ids()
	first.set("2", "2r")
	m.mu.Lock()
	e := m.entries["first"]
	m.mu.Unlock()
	is, err := e.query(t.Context())
	must(t, err)
	for range 2 {
		m.received("first", e.Server, external.Health{Ready: true, Identity: is})
		m.publish()
	}
	if off.is() != "burst-first,burst-second true" || fmt.Sprint(off.ids()) != fmt.Sprint(ids) {
		t.Errorf("used are %s %v, were %v", off.is(), off.ids(), ids)
	}
	if after, _ := store.Note(note); string(after) != string(before) {
		t.Errorf("the list is %s, was %s", after, before)
	}
}

// TestTargetsOfAnOlderVersionAreUsed: their records do not tell that they were used, nor their identities.
func TestTargetsOfAnOlderVersionAreUsed(t *testing.T) {
	first, second := newCampus(t, "", ""), newCampus(t, "", "")
	store, key := &memory{}, newKey(t)
	m, _, _ := manager(t, store, key)
	all := []config.Burst{first.entry(t, "first"), second.entry(t, "second")}
	m.Configure(all)
	blob, err := store.Note(note)
	must(t, err)
	var records []map[string]any
	must(t, json.Unmarshal(blob, &records))
	if len(records) != 2 {
		t.Fatalf("stored are %s", blob)
	}
	for _, r := range records {
		delete(r, "origin")
		delete(r, "new")
		delete(r, "identity")
	}
	blob, err = json.Marshal(records)
	must(t, err)
	must(t, store.PutNote(note, blob))

	m, off, _ := manager(t, store, key)
	m.Configure(all)
	if off.is() != "burst-first,burst-second true" {
		t.Errorf("used are %s", off.is())
	}
	m.Configure(nil)
	if left := m.List(); len(left) != 2 || !left[0].Removed || !left[1].Removed {
		t.Errorf("to be cleaned up are %+v", left)
	}
}

// TestNothingIsDeletedInANamespaceThatMayBeInUse: what counts is what both campuses answer directly before a cleanup.
func TestNothingIsDeletedInANamespaceThatMayBeInUse(t *testing.T) {
	first, second := newCampus(t, "1", "1r"), newCampus(t, "2", "2r")
	m, off, tracker, all := bothUsed(t, &memory{}, first, second)
	second.set("1", "2r") // its address leads to the first's namespace now
	m.Configure(all[1:])
	kept := func(what string) {
		t.Helper()
		await.Empty(t, time.Minute, what, func(context.Context) string {
			m.wake()
			p := tracker.Problems()
			if len(p) != 1 || p[0].Code != "burst-left" || !strings.Contains(p[0].Text, "kept: target second may use that namespace") || !strings.Contains(p[0].Cure, "rivulet burst remove first --force") {
				return fmt.Sprintf("%+v %s", p, off.is())
			}
			return ""
		})
	}
	kept("the same namespace")
	gone, err := m.Remove(t.Context(), "first", false)
	must(t, err)
	if !gone.Kept || gone.Waiting == "" {
		t.Errorf("the removal is reported as %+v", gone)
	}
	first.set("", "1r")
	second.set("", "2r")
	if gone, err = m.Remove(t.Context(), "first", false); err != nil || !gone.Kept {
		t.Errorf("with ConfigMaps alone it is reported as %+v %v", gone, err)
	}
	kept("ConfigMaps alone")
	if first.wasCleaned() {
		t.Fatal("it was cleaned up")
	}
	first.set("1", "1r")
	second.set("2", "2r")
	await.Empty(t, time.Minute, "it is cleaned up as soon as they surely differ", func(context.Context) string {
		m.wake()
		if left := m.List(); len(left) != 1 || !first.wasCleaned() {
			return fmt.Sprintf("%+v", left)
		}
		return ""
	})
	if second.wasCleaned() {
		t.Error("the one in use was cleaned up")
	}
}

// TestANewAddressWithoutAnIdentityKeepsTheTarget that is in use, and tells what to do.
func TestANewAddressWithoutAnIdentityKeepsTheTarget(t *testing.T) {
	old, next := newCampus(t, "", ""), newCampus(t, "", "")
	m, off, tracker := manager(t, &memory{}, newKey(t))
	all := []config.Burst{old.entry(t, "campus")}
	m.Configure(all)
	before := off.ids()
	next.write(t, all[0].Kubeconfig)
	defer run(m)()
	await.Empty(t, time.Minute, "it is told", func(context.Context) string {
		m.wake()
		if p := tracker.Problems(); len(p) != 1 || p[0].Code != "burst-credential" || !strings.Contains(p[0].Text, "it is not known whether its new address "+next.URL) {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	if left := m.List(); len(left) != 1 || left[0].Removed || left[0].Server != old.URL || len(before) != 1 || fmt.Sprint(off.ids()) != fmt.Sprint(before) {
		t.Errorf("used are %v, were %v: %+v", off.ids(), before, left)
	}
}
