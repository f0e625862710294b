package external_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"rivulet/offload/target/external"
	"rivulet/test/harness/await"
)

// follower is a target whose credential is renewed outside of us.
type follower struct {
	what   string
	old    external.Credential // the first one, kept
	health *heard
}

// heard is what a target is said to be like.
type heard struct {
	mu    sync.Mutex
	last  external.Health
	since time.Time // when it was Ready for the first time
	lost  string    // why it was not Ready after that
}

func (h *heard) hear(now external.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = now
	switch {
	case now.Ready && h.since.IsZero():
		h.since = time.Now()
	case !now.Ready && !h.since.IsZero():
		h.lost = now.Reason
	}
}

// lastGood is when the campus took the credential last; an error if it has ever not.
func (h *heard) lastGood() (time.Time, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost != "" {
		return time.Time{}, fmt.Errorf("it was not ready: %s", h.lost)
	}
	if h.since.IsZero() {
		return time.Time{}, nil
	}
	return h.last.Since, nil
}

// renewals starts targets with an exec plug-in, a file of a token and files of a client
// certificate, renews these, and takes the first ones out of force: tokens by deleting
// what they are bound to, the certificate by its date. The function that is returned
// waits until that has come true, and checks that the targets went on.
func renewals(t *testing.T, c *campus) (check func(*testing.T)) {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	for _, readable := range []string{filepath.Dir(dir), dir} { // the plug-in is nobody
		must(t, os.Chmod(readable, 0o755))
	}
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path+".new", []byte(text), mode))
		must(t, os.Rename(path+".new", path)) // as who renews it does
		return path
	}
	_, err := c.Client.RbacV1().RoleBindings(shared).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "by-certificate"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "rivulet-burst"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "renewed"}}}, metav1.CreateOptions{})
	must(t, err)

	token := c.boundToken(t, "first")
	must(t, os.Mkdir(filepath.Join(dir, "plugin.d"), 0o777))
	must(t, os.Chmod(filepath.Join(dir, "plugin.d"), 0o777))
	plugin := write("plugin", "#!/bin/sh\nset -e\necho x >>"+dir+"/plugin.d/runs\n"+
		`printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$(cat `+dir+`/token.open)"`+"\n", 0o755)
	write("token", token, 0o600)
	write("token.open", token, 0o644)
	certificate, key := c.certificate(t, "renewed", 15*time.Second)
	write("certificate", certificate, 0o600)
	write("key", key, 0o600)

	all := []*follower{
		{what: "an exec plug-in", old: c.credential(t, &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: plugin, InteractiveMode: clientcmdapi.NeverExecInteractiveMode}})},
		{what: "a file of a token", old: c.credential(t, &clientcmdapi.AuthInfo{TokenFile: filepath.Join(dir, "token")})},
		{what: "files of a certificate", old: c.credential(t, &clientcmdapi.AuthInfo{ClientCertificate: filepath.Join(dir, "certificate"), ClientKey: filepath.Join(dir, "key")})},
	}
	settings := external.Settings{Name: "renewed", Namespace: shared, Limits: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}}
	must(t, settings.Complete())
	for _, f := range all {
		f.health = &heard{}
		target, err := external.New(external.Config{Node: "burst-renewed", Settings: settings, Credential: f.old, Cluster: cluster, Received: f.health.hear,
			CheckEvery: 500 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		within, stop := context.WithCancel(context.Background())
		t.Cleanup(stop)
		t.Cleanup(target.Close)
		go func() {
			for range target.Offers(within) { // nobody needs them here
			}
		}()
		await.Empty(t, 60*time.Second, f.what+" is taken", func(context.Context) string {
			at, err := f.health.lastGood()
			if err != nil || at.IsZero() {
				return fmt.Sprint("not yet ", err)
			}
			return ""
		})
	}
	fixed := []external.Credential{ // the first ones
		c.credential(t, &clientcmdapi.AuthInfo{Token: token}),
		c.credential(t, &clientcmdapi.AuthInfo{ClientCertificateData: []byte(certificate), ClientKeyData: []byte(key)}),
	}
	second := c.boundToken(t, "second")
	write("token", second, 0o600)
	write("token.open", second, 0o644)
	certificate, key = c.certificate(t, "renewed", time.Hour)
	write("key", key, 0o600)
	write("certificate", certificate, 0o600)
	must(t, c.Client.CoreV1().Secrets("default").Delete(ctx, "first", metav1.DeleteOptions{}))

	return func(t *testing.T) {
		for i, old := range fixed {
			await.Empty(t, 90*time.Second, fmt.Sprintf("first credential %d is refused", i), func(ctx context.Context) string {
				_, err := external.Examine(ctx, settings, old, cluster)
				if err == nil || !strings.Contains(err.Error(), "the credential is refused") && !strings.Contains(err.Error(), "the credential ended") {
					return fmt.Sprint("it is taken still: ", err)
				}
				if !strings.HasSuffix(err.Error(), "rivulet burst add NAME --kubeconfig FILE") && !strings.HasSuffix(err.Error(), "ask the administrator for a new kubeconfig") {
					t.Errorf("the error has no cure: %v", err)
				}
				return ""
			})
		}
		refused := time.Now()
		for _, f := range all {
			await.Empty(t, 60*time.Second, f.what+" was renewed, and the target went on", func(context.Context) string {
				at, err := f.health.lastGood()
				if err != nil {
					t.Fatalf("%s: %v", f.what, err)
				}
				if at.Before(refused) {
					return "it was not looked at since"
				}
				return ""
			})
		}
		runs, err := os.ReadFile(filepath.Join(dir, "plugin.d", "runs"))
		must(t, err)
		if n := strings.Count(string(runs), "x"); n < 2 || n > 20 {
			t.Errorf("the plug-in was run %d times", n)
		}
	}
}

// credential is a kubeconfig as it is kept.
func (c *campus) credential(t *testing.T, user *clientcmdapi.AuthInfo) external.Credential {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}
	file.AuthInfos["u"] = user
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: shared}
	file.CurrentContext = "x"
	raw, err := clientcmd.Write(*file)
	must(t, err)
	out, err := external.ReadCredential(raw, "", "", false)
	must(t, err)
	return out
}

// boundToken is a token of the user that holds until the Secret of that name goes.
func (c *campus) boundToken(t *testing.T, secret string) string {
	t.Helper()
	s, err := c.Client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}}, metav1.CreateOptions{})
	must(t, err)
	r, err := c.Client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, &authv1.TokenRequest{
		Spec: authv1.TokenRequestSpec{BoundObjectRef: &authv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: s.Name, UID: s.UID}}}, metav1.CreateOptions{})
	must(t, err)
	return r.Status.Token
}

// certificate is one of the campus's authority, PEM, with its key.
func (c *campus) certificate(t *testing.T, user string, life time.Duration) (certificate, key string) {
	t.Helper()
	authority, err := cert.CertsFromFile(filepath.Join(c.TLSDir, "client-ca.crt"))
	must(t, err)
	signer, err := keyutil.PrivateKeyFromFile(filepath.Join(c.TLSDir, "client-ca.key"))
	must(t, err)
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: user},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, authority[0], own.Public(), signer)
	must(t, err)
	raw, err := keyutil.MarshalPrivateKeyToPEM(own)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(raw)
}
