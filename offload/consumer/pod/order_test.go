package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/homeapi"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// place is a target that is only an API.
type place struct{ client *fake.Clientset }

func (p place) Name() string                                             { return "b" }
func (p place) ID() string                                               { return "bid" }
func (p place) Client() kubernetes.Interface                             { return p.client }
func (p place) Config() *rest.Config                                     { return nil }
func (p place) Namespace(_ context.Context, home string) (string, error) { return home + "-a", nil }
func (p place) Twins(context.Context) (map[string]string, error) {
	return map[string]string{"lab": "lab-a"}, nil
}
func (p place) Gone(context.Context, string) (bool, error) { return false, nil }
func (p place) Release(context.Context, string) error      { return nil }
func (p place) Offers(context.Context) <-chan offer.Offer  { return nil }
func (p place) Home(a netip.Addr) (netip.Addr, bool)       { return a, true }
func (p place) Away(a netip.Addr) (netip.Addr, bool)       { return a, true }

// keeps is a place that replaces pods itself.
type keeps struct{ place }

func (keeps) Keeps() bool           { return true }
func (keeps) HomeAddresses() string { return "" }
func (keeps) Lost() bool            { return false }

// reachable are the nodes of a target that is.
type reachable struct{}

func (reachable) Up() bool                          { return true }
func (reachable) Platform(string) (os, arch string) { return "", "" }

// mode is that of all namespaces, as seen last.
type mode struct{ policy.When }

func (m *mode) Get(string) (policy.Namespace, bool)                { return policy.Namespace{When: m.When}, true }
func (*mode) Check(context.Context, string) error                  { return nil }
func (*mode) Parse(ns *corev1.Namespace) (policy.Namespace, error) { return policy.Parse(ns) }

// controller is that of the pods of node b, where those of all namespaces may run if cfg does not say otherwise.
func controller(home kubernetes.Interface, cfg Config) *Controller {
	cfg.Home = Home{Client: home, ID: "aid", HostIP: netip.MustParseAddr("10.0.0.1"), Recorder: record.NewFakeRecorder(10000)}
	cfg.Nodes, cfg.Log = reachable{}, slog.New(slog.DiscardHandler)
	if cfg.Namespaces == nil {
		cfg.Namespaces = &mode{policy.Remote}
	}
	c := New(cfg)
	c.Serve("b")
	return c
}

// A kubelet that does not find a Secret of a pod looks again after pauses of up to
// two minutes. So the tokens are there before anything is that makes the pod,
// whatever goes wrong with them; they are gone when the pod is, and nothing of an
// earlier life stays.
func TestTokensComeFirstAndGoLast(t *testing.T) {
	synctest.Test(t, tokensComeFirstAndGoLast)
}

func tokensComeFirstAndGoLast(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "b",
		Containers: []corev1.Container{{Name: "web", Image: "web"}},
		Volumes: []corev1.Volume{{Name: "api", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}}}}}
	home := fake.NewClientset(pod)
	home.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{Token: "secret", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}}, nil
	})
	// As an API server does it: who writes a status writes nothing else.
	home.PrependReactor("update", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "status" {
			return false, nil, nil
		}
		written := a.(clienttesting.UpdateAction).GetObject().(*corev1.Pod)
		now, err := home.Tracker().Get(a.GetResource(), a.GetNamespace(), written.Name)
		if err != nil {
			return true, nil, err
		}
		p := now.(*corev1.Pod).DeepCopy()
		p.Status = written.Status
		return true, p, home.Tracker().Update(a.GetResource(), p, a.GetNamespace())
	})
	stale := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: translate.TokenSecret("u0"), Namespace: "lab-a", UID: "s0",
		Labels: map[string]string{policy.OriginLabel: "aid", policy.HomeUIDLabel: "u0"}, Annotations: map[string]string{policy.HomePodAnnotation: "old"}}}
	away := fake.NewClientset(stale, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: homeapi.Service, Namespace: "lab-a"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.9"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: homeapi.Variables, Namespace: "lab-a"}})
	var mu sync.Mutex
	var order []string
	fails := 3
	note := func(what string) { mu.Lock(); order = append(order, what); mu.Unlock() }
	away.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if fails > 0 {
			fails--
			order = append(order, "no token")
			return true, nil, errors.New("the link broke")
		}
		order = append(order, "token")
		return false, nil, nil
	})
	away.PrependReactor("create", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) { note("pod"); return false, nil, nil })
	away.PrependReactor("delete", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) { note("pod gone"); return false, nil, nil })
	away.PrependReactor("delete", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.DeleteAction).GetName() == translate.TokenSecret("u1") {
			note("token gone")
		}
		return false, nil, nil
	})

	c := controller(home, Config{Target: place{away}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	defer func() { stop(); <-done }()
	until := func(what string, holds func() bool) {
		t.Helper()
		await.NoError(t, t.Context(), 30*time.Second, what, func() error {
			if !holds() {
				mu.Lock()
				defer mu.Unlock()
				return fmt.Errorf("%v", order)
			}
			return nil
		})
	}
	until("the pod is sent away", func() bool {
		p, err := home.CoreV1().Pods("lab").Get(ctx, "web", metav1.GetOptions{})
		return err == nil && translate.Condition(&p.Status, translate.OffloadedCondition) != nil
	})
	s, err := away.CoreV1().Secrets("lab-a").Get(ctx, translate.TokenSecret("u1"), metav1.GetOptions{})
	if err != nil || string(s.Data["token-0"]) != "secret" {
		t.Errorf("%v %v", s, err)
	}
	until("the token of a pod that is long gone goes", func() bool {
		_, err := away.CoreV1().Secrets("lab-a").Get(ctx, stale.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})

	// A stand-in for the API server, which marks what is deleted and waits.
	p, err := home.CoreV1().Pods("lab").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	if _, err = home.CoreV1().Pods("lab").Update(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("the pod is gone", func() bool {
		_, err := home.CoreV1().Pods("lab").Get(ctx, "web", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	mu.Lock()
	defer mu.Unlock()
	// A write may be tried again before its watch shows it: what counts is what first comes before what.
	var first []string
	for _, what := range order {
		if !slices.Contains(first, what) {
			first = append(first, what)
		}
	}
	if want := []string{"no token", "token", "pod", "pod gone", "token gone"}; fails > 0 || !slices.Equal(first, want) || order[len(order)-1] != "token gone" {
		t.Errorf("%q, want %q, with writes repeated or not; %d failures are left", order, want, fails)
	}
}
