package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/appliance/api"
	"rivulet/offload"
	"rivulet/offload/consumer"
	"rivulet/offload/policy"
)

// pulled returns what a client says of a real registry whose certificate is valid from and to these times, from now.
func pulled(t *testing.T, from, to time.Duration) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	_, err = (&tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: "localhost"}}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
	if err == nil {
		t.Fatal("the certificate is valid")
	}
	return err.Error()
}

// A pull that fails because the clock is behind is a warning with cures, also for pods of other clusters here, and not for
// those on peers; one that fails for another reason is none.
func TestPullsThatFailByTheClock(t *testing.T) {
	const day = 24 * time.Hour
	early, late := pulled(t, 30*day, 90*day), pulled(t, -90*day, -30*day)
	pod := func(node, reason, message, origin string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web"}, Spec: corev1.PodSpec{NodeName: node}}
		if origin != "" {
			p.Labels = map[string]string{policy.OriginLabel: origin}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Image: "ghcr.io/web:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		return p
	}
	backOff := func(why string) string {
		return `Back-off pulling image "ghcr.io/web:1": ErrImagePull: failed to resolve: ` + why
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want Status
	}{
		"it is behind":           {pod("pi", "ErrImagePull", early, ""), Warn},
		"it waits to try again":  {pod("pi", "ImagePullBackOff", backOff(early), ""), Warn},
		"of another cluster":     {pod("pi", "ImagePullBackOff", backOff(early), "x"), Warn},
		"on a peer":              {pod("lab-2", "ImagePullBackOff", backOff(early), ""), Pass},
		"the certificate is old": {pod("pi", "ImagePullBackOff", backOff(late), ""), Pass},
		"there is none":          {pod("pi", "ErrImagePull", "not found", ""), Pass},
	} {
		t.Run(name, func(t *testing.T) {
			e := machine(t, nil)
			client := fake.NewClientset(tt.pod)
			e.api = func() (kubernetes.Interface, error) { return client, nil }
			e.supervisor = status(api.Status{Status: offload.Status{VirtualNodes: []consumer.VirtualNode{{Name: "lab-2"}}}})
			words := []string{}
			if tt.want == Warn {
				words = []string{"ghcr.io/web:1", "lab/web on pi", "NTP", "page Device", "sudo date -s"}
			}
			found(t, e, clockBehind, tt.want, words...)
		})
	}
}
