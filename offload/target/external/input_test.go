package external

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

const (
	clusters = "clusters: [{name: c, cluster: {server: 'https://campus.example:6443'}}]\n"
	users    = "users: [{name: u, user: {token: t}}]\n"
	contexts = "contexts: [{name: x, context: {cluster: c, user: u, namespace: lab}}]\n"
	file     = "apiVersion: v1\nkind: Config\n"
)

// TestBadKubeconfigs: each has an error of its own that ends in a cure, and none
// quotes what is secret.
func TestBadKubeconfigs(t *testing.T) {
	two := "contexts: [{name: first, context: {cluster: c, user: u}}, {name: second, context: {cluster: c, user: u}}]\n"
	for what, tc := range map[string]struct{ text, context, want string }{
		"not YAML":          {"a: [secretword", "", "this is no kubeconfig; "},
		"empty":             {"", "", "has no context; "},
		"two contexts":      {file + clusters + users + two, "", "choose one of first, second with --context"},
		"another context":   {file + clusters + users + two, "z", `no context "z"; choose one of first, second`},
		"no server":         {file + users + contexts, "", "names no server; "},
		"no user":           {file + clusters + contexts, "", `names user "u", who is not in it; `},
		"no credential":     {file + clusters + contexts + "users: [{name: u, user: {}}]\n", "", "has no credential "},
		"plug-in missing":   {file + clusters + contexts + "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-plugin, installHint: get it from campus.example}}}]\n", "", "which is not here; get it from campus.example"},
		"old auth-provider": {file + clusters + contexts + "users: [{name: u, user: {auth-provider: {name: oidc}}}]\n", "", `auth-provider "oidc"`},
		"token file":        {file + clusters + contexts + "users: [{name: u, user: {tokenFile: none}}]\n", "", "the kubeconfig's tokenFile: "},
		"authority missing": {strings.Replace(file+clusters+users+contexts, "6443'", "6443', certificate-authority: none", 1), "", "certificate-authority: "},
	} {
		_, err := ReadCredential([]byte(tc.text), t.TempDir(), tc.context, false)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "; ") || strings.Contains(err.Error(), "secretword") {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
	}
}

// TestCredentials: what is kept is one context, inline, with whole paths.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Date(2040, 1, 2, 0, 0, 0, 0, time.UTC).Unix()))
	for name, text := range map[string]string{"ca": "authority", "token": "x." + claims + ".y"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.Replace(file+clusters, "6443'", "6443', certificate-authority: ca", 1) + contexts +
		"users: [{name: u, user: {tokenFile: token}}, {name: other, user: {token: not-ours}}]\n"
	c, err := ReadCredential([]byte(text), dir, "", false)
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.REST()
	if err != nil || config.Host != "https://campus.example:6443" || string(config.CAData) != "authority" || config.WrapTransport == nil {
		t.Errorf("%+v %v", config, err)
	}
	if c.Namespace != "lab" || c.Ends().Year() != 2040 || c.Renewed() != "file "+filepath.Join(dir, "token") {
		t.Errorf("%s %s %s", c.Namespace, c.Ends(), c.Renewed())
	}
	if strings.Contains(string(c.Kubeconfig), "not-ours") {
		t.Error("other users' credentials are kept, too")
	}
}

func TestBadSettings(t *testing.T) {
	for _, text := range []string{"cpu", "cpu=", "cpu=x", "=1", "cpu=1,cpu=2", "cpu=1 memory=2"} {
		if _, err := Limits(text); err == nil || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for what, s := range map[string]Settings{
		"name": {Name: "Bad_Name"}, "long": {Name: strings.Repeat("a", 41)}, "network": {Name: "a", Network: "tcp"}, "order": {Name: "a", Order: "first"},
		"namespace": {Name: "a", Namespace: "A_b"}, "negative": {Name: "a", Limits: corev1.ResourceList{"cpu": resource.MustParse("-1")}},
		"label": {Name: "a", Labels: map[string]string{"a b": ""}}, "our label": {Name: "a", Labels: map[string]string{"rivulet.dev/kind": "x"}},
	} {
		if err := s.Complete(); err == nil || !strings.ContainsAny(err.Error(), ";:") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestExplainedErrorsKeepTheCause(t *testing.T) {
	cause := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	if err := explain(cause, "lab"); !errors.Is(err, cause) || !strings.Contains(err.Error(), "not reached") || !strings.Contains(err.Error(), "; ") {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"x509: certificate signed by unknown authority":        "another authority",
		"getting credentials: exec: executable foo not found":  "run it by hand",
		"remote error: tls: expired certificate":               "client certificate",
		"http: server gave HTTP response to HTTPS client":      "does not speak TLS",
		"Get \"https://x\": context deadline exceeded (Client": "HTTPS_PROXY",
	} {
		if err := explain(errors.New(text), "lab"); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestRoom: never more than the limits, never more than a quota leaves, and what we use
// ourselves is not taken from us.
func TestRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) int64 { return rapid.Int64Range(0, 50).Draw(t, name) }
		limit, hard, own, others := draw("limit"), draw("hard"), draw("own"), draw("others")
		key := rapid.SampledFrom([]corev1.ResourceName{"cpu", "requests.cpu", "limits.cpu"}).Draw(t, "key")
		q := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
		quota := corev1.ResourceQuota{Status: corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{key: q(hard)}, Used: corev1.ResourceList{key: q(own + others)}}}
		room := Room(corev1.ResourceList{"cpu": q(limit)}, []corev1.ResourceQuota{quota}, corev1.ResourceList{"cpu": q(own)})
		cpu := room[corev1.ResourceCPU]
		if want := min(limit, max(0, hard-others)); cpu.Value() != want {
			t.Fatalf("room %d, want %d", cpu.Value(), want)
		}
		scoped := quota.DeepCopy()
		scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		room = Room(corev1.ResourceList{"cpu": q(limit)}, []corev1.ResourceQuota{*scoped}, nil)
		if cpu := room[corev1.ResourceCPU]; cpu.Value() != limit {
			t.Fatalf("a scoped quota counts: %d", cpu.Value())
		}
	})
}

// TestRoomOfTwoArchitectures: the namespace has one room, whichever nodes pods are on.
func TestRoomOfTwoArchitectures(t *testing.T) {
	of := func(cpu string) corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse(cpu)} }
	s := state{ownBy: map[string]corev1.ResourceList{"amd64": of("3"), "arm64": of("1")}}
	for arch, want := range map[string]int64{"amd64": 7, "arm64": 5} {
		if got := s.roomOf(arch, of("8")); got.Cpu().Value() != want {
			t.Errorf("%s: %v, want %d", arch, got, want)
		}
	}
	target := &Target{cfg: Config{Settings: Settings{Arch: "arm64", Limits: of("8"), Labels: map[string]string{"site": "campus"}}}}
	if o := target.offer(s, "v1.35.0"); o.Architecture != "arm64" || len(o.Platforms) != 0 || o.Labels["site"] != "campus" {
		t.Errorf("where nodes cannot be read the user says what they are: %+v", o)
	}
	node := func(arch, zone string) corev1.Node {
		n := corev1.Node{}
		n.Labels = map[string]string{corev1.LabelArchStable: arch, corev1.LabelTopologyZone: zone}
		return n
	}
	s.arches, s.labels = platforms([]corev1.Node{node("arm64", "z"), node("amd64", "z"), node("amd64", "z")})
	o := target.offer(s, "v1.35.0")
	if len(o.Platforms) != 2 || o.Architecture != "amd64" && o.Platforms[0].Architecture != "amd64" || o.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("%+v", o)
	}
}

// TestRestrict: what passes stays as it is, what says nothing is completed, what says
// the contrary is refused.
func TestRestrict(t *testing.T) {
	container := func(context map[string]any) map[string]any {
		return map[string]any{"containers": []any{map[string]any{"name": "c", "securityContext": context}}}
	}
	spec := container(map[string]any{"runAsUser": 1000, "capabilities": map[string]any{"add": []any{"NET_BIND_SERVICE"}}})
	if err := restrict(spec); err != nil {
		t.Fatal(err)
	}
	once := fmt.Sprint(spec)
	for _, want := range []string{"drop:[ALL]", "allowPrivilegeEscalation:false", "runAsNonRoot:true", "type:RuntimeDefault", "runAsUser:1000"} {
		if !strings.Contains(once, want) {
			t.Errorf("no %s in %s", want, once)
		}
	}
	if err := restrict(spec); err != nil || fmt.Sprint(spec) != once {
		t.Errorf("a second time: %v %v", err, spec)
	}
	for what, bad := range map[string]map[string]any{
		"runAsUser": {"runAsUser": 0}, "runAsNonRoot": {"runAsNonRoot": false}, "allowPrivilegeEscalation": {"allowPrivilegeEscalation": true},
		"capabilities": {"capabilities": map[string]any{"add": []any{"SYS_ADMIN"}}}, "seccompProfile": {"seccompProfile": map[string]any{"type": "Unconfined"}},
	} {
		if err := restrict(container(bad)); err == nil || !strings.Contains(err.Error(), "spec.containers[0].securityContext."+what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
