package offload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/homeapi"
	"rivulet/test/harness/await"
)

// homeAPI is the part of the story about an away pod and the API server of home.
// pod runs on b, in the namespace lab of a.
func homeAPI(t *testing.T, a, b *device, pod *corev1.Pod) {
	ctx := t.Context()
	away := b.away(ctx, t, string(pod.UID))[0]
	twin := away.Namespace
	name := "rivulet-token-" + string(pod.UID)
	secret := func() *corev1.Secret {
		t.Helper()
		s, err := b.Client.CoreV1().Secrets(twin).Get(ctx, name, metav1.GetOptions{})
		must(t, err)
		return s
	}
	token := string(secret().Data["token-0"])

	t.Run("its token is one of home, bound to the pod of home", func(t *testing.T) {
		found := false
		for _, v := range away.Spec.Volumes {
			for _, s := range sources(v) {
				found = found || s.Secret != nil && s.Secret.Name == name
			}
		}
		if !found {
			t.Fatalf("no volume of the away pod has it: %+v", away.Spec.Volumes)
		}
		review, err := a.Client.AuthenticationV1().TokenReviews().Create(ctx, &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		must(t, err)
		u := review.Status.User
		if !review.Status.Authenticated || u.Username != "system:serviceaccount:lab:default" || u.Extra["authentication.kubernetes.io/pod-uid"][0] != string(pod.UID) {
			t.Fatalf("%+v", review.Status)
		}
		review, err = b.Client.AuthenticationV1().TokenReviews().Create(ctx, &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		must(t, err)
		if review.Status.Authenticated {
			t.Fatal("the provider takes it for one of its own")
		}
	})

	t.Run("the way to the API server is in the twin", func(t *testing.T) {
		s, err := b.Client.CoreV1().Services(twin).Get(ctx, homeapi.Service, metav1.GetOptions{})
		must(t, err)
		last := away.Spec.HostAliases[len(away.Spec.HostAliases)-1]
		if last.IP != s.Spec.ClusterIP || s.Spec.Ports[0].Port != 443 {
			t.Errorf("alias %v, service %+v", last, s.Spec)
		}
		e, err := b.Client.DiscoveryV1().EndpointSlices(twin).Get(ctx, homeapi.Service, metav1.GetOptions{})
		must(t, err)
		if len(e.Endpoints) != 1 || e.Endpoints[0].Addresses[0] != "10.88.255.254" || *e.Ports[0].Port != 7442 {
			t.Errorf("endpoints %+v %+v: not a's control address as b sees it", e.Endpoints, e.Ports)
		}
	})

	ca, err := b.Client.CoreV1().ConfigMaps(twin).Get(ctx, homeapi.Authority, metav1.GetOptions{})
	must(t, err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(ca.Data["ca.crt"])) {
		t.Fatalf("no authority in %v", ca.Data)
	}
	get := func(from, url string) (int, string, error) {
		client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
			DialContext: func(context.Context, string, string) (net.Conn, error) { return a.fabric.comes(t, from), nil }}}
		req, err := http.NewRequest(http.MethodGet, url, nil)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}

	ask := func(from string) (int, string, error) {
		return get(from, "https://kubernetes.default.svc/api/v1/namespaces/lab/pods/"+pod.Name)
	}

	t.Run("what it finds the keys of tokens by leads to them", func(t *testing.T) {
		var found struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		code, body, err := get(pod.Status.PodIP, "https://kubernetes.default.svc.cluster.local/.well-known/openid-configuration")
		if err != nil || code != http.StatusOK || json.Unmarshal([]byte(body), &found) != nil {
			t.Fatalf("%d %s %v", code, body, err)
		}
		for what, uri := range map[string]string{"issuer": found.Issuer, "jwks_uri": found.Keys} {
			u, err := url.Parse(uri)
			must(t, err)
			if u.Scheme != "https" || u.Port() != "" || !slices.Contains(away.Spec.HostAliases[len(away.Spec.HostAliases)-1].Hostnames, u.Host) {
				t.Errorf("%s is %s, which is nowhere for a pod away", what, uri)
			}
		}
		if code, body, err := get(pod.Status.PodIP, found.Keys); err != nil || code != http.StatusOK || !strings.Contains(body, `"kid"`) {
			t.Errorf("%d %s %v", code, body, err)
		}
	})

	t.Run("from its own address it talks to home, with the rights of its account", func(t *testing.T) {
		if code, body, err := ask(pod.Status.PodIP); err != nil || code != http.StatusForbidden || !strings.Contains(body, "system:serviceaccount:lab:default") {
			t.Fatalf("without rights: %d %s %v", code, body, err)
		}
		_, err := a.Client.RbacV1().RoleBindings("lab").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "view"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: "lab"}}}, metav1.CreateOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "with rights", func(context.Context) string {
			if code, body, err := ask(pod.Status.PodIP); err != nil || code != http.StatusOK || !strings.Contains(body, string(pod.UID)) {
				return fmt.Sprintf("%d %s %v", code, body, err)
			}
			return ""
		})
	})

	t.Run("others of the provider, and of elsewhere, get no connection", func(t *testing.T) {
		var asking sync.WaitGroup
		for _, from := range []string{"10.77.0.250", "10.77.255.254", "10.42.0.9", "192.0.2.1"} {
			asking.Go(func() {
				if code, body, err := ask(from); err == nil {
					t.Errorf("%s was answered: %d %s", from, code, body)
				}
			})
		}
		if code, body, err := ask(pod.Status.PodIP); err != nil || code != http.StatusOK { // beside them, one that may
			t.Errorf("the pod itself: %d %s %v", code, body, err)
		}
		asking.Wait()
	})

	t.Run("it is renewed in time, and comes back when it is deleted", func(t *testing.T) {
		before := secret()
		_, err := b.Client.CoreV1().Secrets(twin).Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/renew-at":"2020-01-01T00:00:00Z"}}}`), metav1.PatchOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "renewed", func(context.Context) string {
			if s := secret(); string(s.Data["token-0"]) == token || s.UID != before.UID || !s.CreationTimestamp.Equal(&before.CreationTimestamp) {
				return "the old one"
			}
			return ""
		})
		must(t, b.Client.CoreV1().Secrets(twin).Delete(ctx, name, metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "made anew", func(ctx context.Context) string {
			s, err := b.Client.CoreV1().Secrets(twin).Get(ctx, name, metav1.GetOptions{})
			if err != nil || s.UID == before.UID {
				return fmt.Sprint(err)
			}
			return ""
		})
		token = string(secret().Data["token-0"])
	})
}

// tokenGone is the end of the story: with the pod of home its token is void, and gone at the provider.
func tokenGone(t *testing.T, a, b *device, pod *corev1.Pod, token string) {
	await.Empty(t, time.Minute, "the token is void and gone", func(ctx context.Context) string {
		review, err := a.Client.AuthenticationV1().TokenReviews().Create(ctx, &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || review.Status.Authenticated {
			return fmt.Sprintf("still good (%v)", err)
		}
		list, err := b.Client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{LabelSelector: "rivulet.dev/home-uid=" + string(pod.UID)})
		if err != nil || len(list.Items) > 0 {
			return fmt.Sprintf("still there (%v)", err)
		}
		return ""
	})
}

func tokenOf(t *testing.T, b *device, pod *corev1.Pod) string {
	t.Helper()
	list, err := b.Client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{LabelSelector: "rivulet.dev/home-uid=" + string(pod.UID)})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d secrets for pod %s: %v", len(list.Items), pod.Name, err)
	}
	return string(list.Items[0].Data["token-0"])
}

func sources(v corev1.Volume) []corev1.VolumeProjection {
	if v.Projected == nil {
		return nil
	}
	return v.Projected.Sources
}

// comes is a connection out of the tunnel from an address.
func (f *loopback) comes(t *testing.T, from string) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	server, err := l.Accept()
	must(t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passed(cameFrom{server, from})
	return client
}

type cameFrom struct {
	net.Conn
	addr string
}

func (c cameFrom) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.addr), Port: 40000} }
