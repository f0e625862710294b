package burst

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
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
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	target "rivulet/offload/target"
	"rivulet/offload/target/external"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// refusedAndHealed: a credential that is not taken any more is told at once, with the
// cure, and the cure works: to add it again with the new one. What was said of the
// target stays.
func refusedAndHealed(t *testing.T, server *apiserver.Server) {
	ctx := t.Context()
	_, err := server.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "student42"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = server.Client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "student"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = server.Client.RbacV1().RoleBindings("student42").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "student"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "student", Namespace: "default"}}}, metav1.CreateOptions{})
	must(t, err)
	credential := func(secret string) external.Credential {
		t.Helper()
		s, err := server.Client.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}}, metav1.CreateOptions{})
		must(t, err)
		r, err := server.Client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "student", &authv1.TokenRequest{
			Spec: authv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](30 * 24 * 3600), BoundObjectRef: &authv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: s.Name, UID: s.UID}}}, metav1.CreateOptions{})
		must(t, err)
		return kubeconfig(t, server.Config.Host, server.Config.CAData, &clientcmdapi.AuthInfo{Token: r.Status.Token})
	}

	tracker, looks := &health.Tracker{}, &watched{t: t}
	m, err := New(Config{Store: &memory{}, Key: newKey(t), Cluster: cluster, Health: tracker, CheckEvery: 300 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	m.Attach(looks.set)
	t.Cleanup(looks.stop)
	limits := corev1.ResourceList{"cpu": resource.MustParse("3"), "memory": resource.MustParse("1Gi")}
	_, err = m.Add(ctx, Request{Credential: credential("first"), Settings: external.Settings{Name: "campus", Namespace: "student42", Limits: limits, Order: external.OrderEqual, Labels: map[string]string{"site": "north"}}})
	must(t, err)
	await.Empty(t, 60*time.Second, "it is ready", func(context.Context) string {
		if v := m.List(); len(v) != 1 || !v[0].State.Ready {
			return fmt.Sprintf("%+v", v)
		}
		return ""
	})
	next := credential("second")
	if _, err := m.Add(ctx, Request{Credential: next, Settings: external.Settings{Name: "campus", Namespace: "student42"}}); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("one that works is not replaced by mistake: %v", err)
	}
	must(t, server.Client.CoreV1().Secrets("default").Delete(ctx, "first", metav1.DeleteOptions{}))
	await.Empty(t, 60*time.Second, "that it is refused is told, and what to do", func(context.Context) string {
		p := tracker.Problems()
		if len(p) != 1 || p[0].Code != "burst-unusable" || !strings.Contains(fmt.Sprint(p[0]), "the credential is refused") || !strings.Contains(fmt.Sprint(p[0]), "rivulet burst add NAME --kubeconfig FILE") {
			return fmt.Sprint(p)
		}
		return ""
	})
	_, err = m.Add(ctx, Request{Credential: next, Settings: external.Settings{Name: "campus", Namespace: "student42"}})
	must(t, err)
	await.Empty(t, 60*time.Second, "it is ready again, and is what it was", func(context.Context) string {
		v := m.List()
		if len(v) != 1 || !v[0].State.Ready || len(tracker.Problems()) != 0 {
			return fmt.Sprintf("%+v %v", v, tracker.Problems())
		}
		if cpu := v[0].Limits["cpu"]; cpu.String() != "3" || v[0].Order != external.OrderEqual || v[0].Labels["site"] != "north" {
			t.Fatalf("what was said of it is lost: %+v", v[0].Settings)
		}
		return ""
	})
}

// watched runs the targets that offloading is told of, as it does, but for all that
// it makes of their offers.
type watched struct {
	t       *testing.T
	cancels []context.CancelFunc
}

func (w *watched) stop() {
	for _, cancel := range w.cancels {
		cancel()
	}
	w.cancels = nil
}

func (w *watched) set(_ target.Kind, all []target.Spec, _ bool) {
	w.stop()
	for _, spec := range all {
		made, err := spec.New(spec.Name, slog.New(slog.DiscardHandler))
		if err != nil {
			w.t.Error(err)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.cancels = append(w.cancels, cancel)
		go func() {
			for range made.Offers(ctx) { // nobody needs them here
			}
		}()
	}
}

func kubeconfig(t *testing.T, server string, authority []byte, user *clientcmdapi.AuthInfo) external.Credential {
	t.Helper()
	credential, err := external.ReadCredential(kubeconfigFile(t, server, authority, user), "", "", false)
	must(t, err)
	return credential
}

func kubeconfigFile(t *testing.T, server string, authority []byte, user *clientcmdapi.AuthInfo) []byte {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	file.AuthInfos["u"] = user
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "x"
	raw, err := clientcmd.Write(*file)
	must(t, err)
	return raw
}

// TestCredentialsThatEnd are told in time, each with its cure: what nothing renews a
// week before, what something renews when that is late.
func TestCredentialsThatEnd(t *testing.T) {
	const day = 24 * time.Hour
	for what, tc := range map[string]struct {
		lived, left time.Duration
		inFile      bool
		want        string // empty: nothing is told
	}{
		"far away":               {day, 30 * day, false, ""},
		"in three days":          {100 * day, 3 * day, false, "put a new kubeconfig in the place"},
		"over":                   {100 * day, -time.Hour, false, "its credential ended"},
		"renewed, half over":     {day, day, true, ""},
		"renewed, and that late": {95 * day, 5 * day, true, "see why it is not renewed by file "},
		"renewed, and over":      {day, -time.Hour, true, "its credential ended"},
	} {
		certificate, key := selfSigned(t, tc.lived, tc.left)
		dir, user := t.TempDir(), &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
		if tc.inFile {
			must(t, os.WriteFile(filepath.Join(dir, "certificate"), certificate, 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "key"), key, 0o600))
			user = &clientcmdapi.AuthInfo{ClientCertificate: "certificate", ClientKey: "key"}
		}
		path := filepath.Join(dir, "kubeconfig")
		must(t, os.WriteFile(path, kubeconfigFile(t, "https://campus.example", nil, user), 0o600))
		m, _, tracker := manager(t, &memory{}, newKey(t))
		m.Configure([]config.Burst{{Name: "campus", Kubeconfig: path, Limits: config.BurstLimits{CPU: "1", Memory: "1Gi"}}})
		p := tracker.Problems()
		switch {
		case tc.want == "" && len(p) > 0, tc.want != "" && (len(p) != 1 || p[0].Code != "burst-credential" || !strings.Contains(fmt.Sprint(p[0]), tc.want)):
			t.Errorf("%s: told is %v", what, p)
		}
	}
}

func selfSigned(t *testing.T, lived, left time.Duration) (certificate, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-lived), NotAfter: time.Now().Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, own.Public(), own)
	must(t, err)
	key, err = keyutil.MarshalPrivateKeyToPEM(own)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key
}
