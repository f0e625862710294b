package burst

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/config"
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
			if !m.entries["first"].Identity.Known() || off.is() != "burst-first false" {
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

		// It is removed while another address of it is used from now on: that one has its objects.
		m.Configure([]config.Burst{entry("third", path("third", vpn))})
		await.Empty(t, time.Minute, "nothing is left to be cleaned up", func(context.Context) string {
			m.wake()
			if all := m.List(); len(all) != 1 || all[0].Name != "third" || all[0].Broken != "" || off.is() != "burst-third true" {
				return fmt.Sprintf("%+v %s", all, off.is())
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
