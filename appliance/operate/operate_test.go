package operate

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

// supervisor answers calls by method and path.
type supervisor map[string]any

func (s supervisor) Call(_ context.Context, method, path string, in, out any) error {
	switch answer := s[method+" "+path].(type) {
	case nil:
		return fmt.Errorf("%w; start it", api.ErrNotRunning)
	case error:
		return answer
	case func(any) any:
		return recode(answer(in), out)
	default:
		return recode(answer, out)
	}
}

func recode(in, out any) error {
	raw, err := json.Marshal(in)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

const status = "GET /v1/status"

func clusterOf(s supervisor, objects ...runtime.Object) Cluster {
	client := fake.NewClientset(objects...)
	return Cluster{Client: func() (kubernetes.Interface, error) { return client, nil }, Supervisor: s}
}

var b = peer.ID(strings.Repeat("b", 52))

func object(ns, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels}
}

// world is a home with peer b, that has a pod of its own and data there, and lends to it.
func world() (supervisor, []runtime.Object) {
	st := api.Status{Peers: []peer.View{{Record: peer.Record{Name: "desk", ID: b}, State: peer.Connected}, {Record: peer.Record{Name: "stranger"}, State: peer.Discovered}}}
	st.VirtualNodes = []offload.VirtualNode{{Name: "b", ID: string(b), Target: "b"}}
	st.Consumers = []offload.Consumer{{Consumer: tenancy.Consumer{ID: b, Pods: 2}}}
	origin := map[string]string{policy.OriginLabel: string(b)}
	return supervisor{status: st}, []runtime.Object{
		&corev1.Node{ObjectMeta: object("", "b", map[string]string{policy.VirtualNodeLabel: string(b)}), Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}}},
		&corev1.Pod{ObjectMeta: object("lab", "alone", nil), Spec: corev1.PodSpec{NodeName: "b"}},
		&corev1.PersistentVolume{ObjectMeta: object("", "v", map[string]string{volume.AwayLabel: string(b)}), Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "lab", Name: "data"}}},
		&corev1.Namespace{ObjectMeta: object("", "twin", origin)}, &corev1.PersistentVolumeClaim{ObjectMeta: object("twin", "theirs", nil)},
		&corev1.Namespace{ObjectMeta: object("", "lab", map[string]string{policy.NamespaceLabel: "burst", policy.NamespaceToLabel: "b"})},
		&corev1.Namespace{ObjectMeta: object("", "odd", map[string]string{policy.NamespaceLabel: "sometimes"})},
		&corev1.Namespace{ObjectMeta: object("", "kube-system", nil)},
	}
}

func TestWhatEndsWithAPeering(t *testing.T) {
	s, objects := world()
	c := clusterOf(s, objects...)
	e, err := c.Ending(t.Context(), "desk", true, true)
	if err != nil || e.Peer != "desk" || len(e.Pods) != 1 || !slices.Equal(e.Claims, []string{"lab/data"}) || e.Theirs != 2 || !slices.Equal(e.Data, []string{"twin/theirs"}) || e.Hidden {
		t.Errorf("%+v, %v", e, err)
	}
	for _, want := range []string{"rivulet move volume lab/data home", "rivulet unpeer desk --force"} {
		if err := e.Lost(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if text := e.String(); !strings.Contains(text, "Pods of desk that end here: 2") || !strings.Contains(text, "lab/data, twin/theirs") {
		t.Error(text)
	}
	if e, err := c.Ending(t.Context(), "desk", false, true); err != nil || len(e.Pods)+len(e.Claims) > 0 || e.Theirs != 2 {
		t.Errorf("lent alone: %+v, %v", e, err)
	}
	if e, err := c.Ending(t.Context(), "stranger", true, true); err != nil || e.Peer != "" {
		t.Errorf("no peer: %+v, %v", e, err)
	}
	// Without an API server the list is incomplete, unless there never was one.
	for hidden, of := range map[bool]error{true: errors.New("refused"), false: fs.ErrNotExist} {
		c.Client = func() (kubernetes.Interface, error) { return nil, of }
		if e, err := c.Ending(t.Context(), "desk", true, true); e.Hidden != hidden || (err != nil) != hidden || e.Peer != "desk" {
			t.Errorf("%v: %+v, %v", of, e, err)
		}
	}
	if _, err := clusterOf(nil).Ending(t.Context(), "desk", true, true); !errors.Is(err, api.ErrNotRunning) {
		t.Error(err)
	}
}

// The nodes of a peer are found by its ID, which the supervisor has, or by their own name without it.
func TestCordonAndDrain(t *testing.T) {
	s, objects := world()
	c := clusterOf(s, objects...)
	for _, name := range []string{"desk", "b"} {
		if set, err := c.Cordon(t.Context(), name, true); err != nil || !slices.Equal(set, []string{"b"}) {
			t.Errorf("%s: %v, %v", name, set, err)
		}
	}
	client, _ := c.Client()
	if n, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{}); err != nil || !n.Spec.Unschedulable {
		t.Error("not cordoned", err)
	}
	if _, err := clusterOf(nil, objects...).Cordon(t.Context(), "desk", true); err == nil {
		t.Error("a name that only the supervisor has")
	}
	d, err := c.Drain(t.Context(), "desk")
	if err != nil || len(d.Pods) != 1 || d.String() == "" {
		t.Fatalf("%+v, %v", d, err)
	}
	if err := d.Lost(); err == nil || !strings.Contains(err.Error(), "rivulet drain desk --force") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.Run(ctx, true, nil); err == nil || !strings.HasSuffix(err.Error(), "rivulet unpeer desk --force") { // the node is not ready
		t.Error(err)
	}
}

func TestNamespaces(t *testing.T) {
	s, objects := world()
	c := clusterOf(s, objects...)
	list := func() (lines []string) {
		all, err := c.Namespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			lines = append(lines, fmt.Sprintf("%s %s %s %t %t %t", n.Name, n.Mode, n.To, n.System, n.Tenant, n.Wrong != ""))
		}
		return lines
	}
	want := []string{"kube-system off  true false false", "lab burst b false false false", "odd off  false false true", "twin off  false true false"}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if away, err := c.PodsAway(t.Context(), "lab"); err != nil || len(away) != 1 || away[0].Name != "alone" {
		t.Errorf("%v, %v", away, err)
	}
	err := errors.Join(c.Unoffload(t.Context(), "lab"), c.Offload(t.Context(), "odd", policy.Namespace{When: policy.Any}, false), c.Offload(t.Context(), "new", policy.Namespace{When: policy.Remote, To: "b"}, true))
	want = []string{"kube-system off  true false false", "lab off  false false false", "new remote b false false false", "odd any  false false false", "twin off  false true false"}
	if got := list(); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if err := c.Offload(t.Context(), "none", policy.Namespace{When: policy.Any}, false); !errors.As(err, new(NoNamespace)) {
		t.Error(err)
	}
	for _, bad := range []struct {
		ns, to string
		when   policy.When
		want   string
	}{{"lab", "", policy.Off, "use burst"}, {"kube-system", "", policy.Any, "stays at home"}, {"twin", "", policy.Any, "another cluster's"}, {"lab", "stranger", policy.Any, "only: b, desk"}} {
		if err := c.CheckOffload(t.Context(), bad.ns, policy.Namespace{When: bad.when, To: bad.to}); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := c.CheckOffload(t.Context(), "lab", policy.Namespace{When: policy.Any, To: "desk"}); err != nil {
		t.Error(err)
	}
}

// The file has the key that the supervisor was sent the certificate of, and the server that was named.
func TestKubeconfig(t *testing.T) {
	var sent api.KubeconfigRequest
	s := supervisor{"POST /v1/kubeconfigs": func(in any) any {
		sent = in.(api.KubeconfigRequest)
		return api.NewKubeconfig{Kubeconfig: api.Kubeconfig{User: sent.User, Role: sent.Role}, Cluster: "a", ServerName: "kubernetes.rivulet"}
	}}
	for server, want := range map[string]string{"": "https://a.local:7442", "192.0.2.1": "https://192.0.2.1:7442", "https://x:1": "https://x:1"} {
		made, err := clusterOf(s).Kubeconfig(t.Context(), api.KubeconfigRequest{User: "kim", Role: "view", For: time.Hour}, server)
		if err != nil || len(sent.Certificate) == 0 {
			t.Fatal(err)
		}
		cfg, err := clientcmd.RESTConfigFromKubeConfig(made.File)
		if err != nil || cfg.Host != want || len(cfg.KeyData) == 0 {
			t.Errorf("%q: %v, %v", server, cfg, err)
		}
	}
	made, err := clusterOf(s).Kubeconfig(t.Context(), api.KubeconfigRequest{User: "kim", For: time.Hour, Link: true}, "")
	if err != nil || made.File != nil || !strings.HasPrefix(made.URL, "https://a.local:7442/") || sent.Certificate != nil || len(sent.Token) != sha256.Size {
		t.Errorf("%+v, %v", made, err)
	}
}

func TestLifetime(t *testing.T) {
	for text, want := range map[string]time.Duration{"30d": 720 * time.Hour, "4w": 672 * time.Hour, "12h": 12 * time.Hour, "45m": 45 * time.Minute, "": 0, "99999d": 0, "x": 0, "-1d": 0} {
		if got, err := Lifetime(text); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
