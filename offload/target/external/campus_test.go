package external_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/target/external"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// campus is a foreign cluster in which we are an ordinary user of one namespace that
// others use, too.
type campus struct {
	*apiserver.Server
	kubeconfig []byte
}

const (
	shared  = "student42" // the namespace
	account = "student"
	cluster = "abcdefghijklmnopqrstuvwxyz234567" // home's ID
)

// enrol makes the namespace with its rules, and the user, who has no rights yet.
func enrol(t *testing.T, s *apiserver.Server) *campus {
	t.Helper()
	ctx := t.Context()
	create := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shared,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}, metav1.CreateOptions{})
	create(err)
	_, err = s.Client.CoreV1().ResourceQuotas(shared).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.cpu": resource.MustParse("2"), "requests.memory": resource.MustParse("2Gi"), "pods": resource.MustParse("6")}}}, metav1.CreateOptions{})
	create(err)
	_, err = s.Client.CoreV1().LimitRanges(shared).Create(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "defaults"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, DefaultRequest: corev1.ResourceList{"memory": resource.MustParse("16Mi")}}}}}, metav1.CreateOptions{})
	create(err)
	_, err = s.Client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	create(err)
	token, err := s.Client.CoreV1().ServiceAccounts("default").CreateToken(ctx, account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	create(err)
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: s.Config.Host, CertificateAuthorityData: s.Config.CAData}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	file.Contexts["campus"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: shared}
	file.CurrentContext = "campus"
	raw, err := clientcmd.Write(*file)
	create(err)
	return &campus{Server: s, kubeconfig: raw}
}

// grant does what an administrator does with the YAML that is printed.
func (c *campus) grant(t *testing.T, role string) {
	t.Helper()
	for doc := range strings.SplitSeq(role, "---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.Kind {
		case "Role":
			var r rbacv1.Role
			if err = yaml.UnmarshalStrict([]byte(doc), &r); err == nil {
				_, err = c.Client.RbacV1().Roles(r.Namespace).Create(t.Context(), &r, metav1.CreateOptions{})
			}
		case "RoleBinding":
			var b rbacv1.RoleBinding
			if err = yaml.UnmarshalStrict([]byte(doc), &b); err == nil {
				_, err = c.Client.RbacV1().RoleBindings(b.Namespace).Create(t.Context(), &b, metav1.CreateOptions{})
			}
		default:
			err = fmt.Errorf("unexpected %q", kind.Kind)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
	}
}

// home is a cluster that bursts.
type home struct {
	*apiserver.Server
	id      string // of the cluster; empty stands for the constant
	test    *testing.T
	offload *offload.Offload
	target  string // its ID
	stop    func()
}

func (h *home) cluster() string { return cmp.Or(h.id, cluster) }

// run starts offloading at home, with the target.
func (h *home) run(spec target.Spec) {
	h.test.Helper()
	o, err := offload.New(offload.Config{
		Home: h.Config, ClusterID: h.cluster(), ClusterName: func() string { return "home" }, NodeName: "home",
		NodeIP: netip.MustParseAddr("127.0.0.1"), PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), Control: netip.MustParseAddrPort("10.42.255.254:7442"),
		ServerTLSDir: h.TLSDir, Peers: nobody{}, Log: slog.New(slog.NewTextHandler(testWriter{h.test}, nil)),
	})
	if err != nil {
		h.test.Fatal(err)
	}
	o.SetTargets(external.Kind, []target.Spec{spec}, true)
	h.offload, h.target = o, spec.ID
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	stopped := false
	h.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-done
		}
	}
	h.test.Cleanup(h.stop)
}

func (h *home) offloaded(t *testing.T, name string) {
	t.Helper()
	_, err := h.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"rivulet.dev/offload": "remote"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await.Empty(t, 30*time.Second, "pods of "+name+" may go away", func(ctx context.Context) string {
		trial := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trial"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		made, err := h.Client.CoreV1().Pods(name).Create(ctx, trial, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		for _, t := range made.Spec.Tolerations {
			if t.Key == policy.VirtualTaint {
				return ""
			}
		}
		return "admission does not prepare pods yet"
	})
}

// nobody is a fabric without peers.
type nobody struct{}

func (nobody) Links() []peer.Link                           { return nil }
func (nobody) Link(peer.ID) (l peer.Link, ok bool)          { return l, ok }
func (nobody) Peerings() (l []peer.Link, u []peer.Unlinked) { return l, u }
func (nobody) Departed() []peer.ID                          { return nil }
func (nobody) Gateways() []netip.Prefix                     { return nil }
func (nobody) Nodes() []peer.Record                         { return nil }
func (nobody) Changed() (<-chan struct{}, func())           { return make(chan struct{}), func() {} }
func (nobody) Client(peer.ID) (*http.Client, string, error) { return nil, "", errors.New("no peers") }
func (nobody) Handle(string, http.Handler)                  {}
func (nobody) Pass(func(net.Conn), ...string)               {}
func (nobody) TLS(peer.ID) ([]byte, []byte, []byte, string, error) {
	return nil, nil, nil, "", errors.New("no peers")
}
func (nobody) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("no peers")
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p[:len(p)-1]))
	return len(p), nil
}
