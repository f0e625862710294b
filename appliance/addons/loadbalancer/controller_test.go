package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/appliance/health"
	"rivulet/fabric/netmon"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakewatch"
)

// device is what a Controller sees of one.
type device struct {
	t      *testing.T
	client *fake.Clientset
	health health.Tracker
	opened Opened

	mu      sync.Mutex
	addrs   []string
	listen  map[Port]bool
	changed chan struct{}
}

func (d *device) LANs() netmon.LANs {
	d.mu.Lock()
	defer d.mu.Unlock()
	var i netmon.Interface
	for _, a := range d.addrs {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
	}
	return netmon.LANs{i}
}

func (d *device) Changed() (<-chan struct{}, func()) { return d.changed, func() {} }

func (d *device) renumber(addrs ...string) {
	d.mu.Lock()
	d.addrs = addrs
	d.mu.Unlock()
	d.changed <- struct{}{}
}

func newDevice(t *testing.T) *device {
	d := &device{t: t, client: fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}), addrs: []string{"192.0.2.7/24"}, listen: map[Port]bool{}, changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	c := New(Config{Client: d.client, LANs: d, Own: map[Port]string{tcp(6443): "the Kubernetes API"}, Health: &d.health, Opened: &d.opened, Log: slog.New(slog.DiscardHandler),
		Listeners: func([]netip.Addr) map[Port]bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.listen
		}})
	c.every = 20 * time.Millisecond
	ready := make(chan struct{})
	var once sync.Once
	go func() { done <- c.Run(ctx, func() { once.Do(func() { close(ready) }) }) }()
	<-ready
	fakewatch.Open(t, d.client, "services")
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *device) create(s *corev1.Service) {
	d.t.Helper()
	if _, err := d.client.CoreV1().Services(s.Namespace).Create(d.t.Context(), s, metav1.CreateOptions{}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *device) expect(name, want string) {
	d.t.Helper()
	await.NoError(d.t, d.t.Context(), 10*time.Second, "as it should be", func() error {
		s, err := d.client.CoreV1().Services("default").Get(d.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			got = append(got, i.IP)
		}
		if strings.Join(got, " ") != want {
			return fmt.Errorf("%s has %q, want %q", name, got, want)
		}
		return nil
	})
}

func TestStory(t *testing.T) {
	d := newDevice(t)
	d.create(service("web", 2, tcp(80)))
	d.expect("web", "192.0.2.7")
	d.renumber("192.0.2.99/24", "198.51.100.1/24")
	d.expect("web", "192.0.2.99 198.51.100.1")
	d.create(service("too", 1, tcp(80)))
	await.NoError(d.t, d.t.Context(), 10*time.Second, "where the LAN reaches it", func() error {
		if got := fmt.Sprint(d.opened.Reached("http://pi.local:7480")); got != "[{default/web [192.0.2.99:80 198.51.100.1:80 pi.local:80]}]" {
			return errors.New(got)
		}
		return nil
	})
	if got := fmt.Sprint(d.opened.Reached("http://192.0.2.99")); strings.Contains(got, "local") {
		t.Errorf("%s: the page has no name", got)
	}
	await.NoError(d.t, d.t.Context(), 10*time.Second, "as it should be", func() error {
		for _, p := range d.health.Problems() {
			if p.Subject == "default/too" && strings.Contains(p.Text, "default/web") && p.Cure != "" {
				return nil
			}
		}
		return errors.New("status does not tell of the conflict")
	})
	d.expect("too", "")
	if err := d.client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d.expect("too", "192.0.2.99 198.51.100.1")
	d.renumber()
	d.expect("too", "")
	await.NoError(d.t, d.t.Context(), 10*time.Second, "as it should be", func() error {
		if p := d.health.Problems(); len(p) != 1 || !strings.Contains(p[0].Cure, "cable") {
			return fmt.Errorf("%v", p)
		}
		return nil
	})
	d.renumber("192.0.2.7/24")
	d.expect("too", "192.0.2.7")
	await.NoError(d.t, d.t.Context(), 10*time.Second, "as it should be", func() error {
		if p := d.health.Problems(); len(p) > 0 {
			return fmt.Errorf("%v", p)
		}
		return nil
	})
}

// Of two Services of the same second, the one that has addresses keeps them.
func TestTwoOfOneSecond(t *testing.T) {
	d := newDevice(t)
	d.create(service("b", 0, tcp(80)))
	d.expect("b", "192.0.2.7")
	d.create(service("a", 0, tcp(80))) // its UID comes first
	await.NoError(t, t.Context(), 10*time.Second, "the conflict", func() error {
		if p := d.health.Problems(); len(p) != 1 || p[0].Subject != "default/a" {
			return fmt.Errorf("%v", p)
		}
		return nil
	})
	d.expect("b", "192.0.2.7")
	d.expect("a", "")
}

// A program that begins to listen takes its port back from a Service.
func TestTheDeviceComesFirst(t *testing.T) {
	d := newDevice(t)
	d.create(service("web", 0, tcp(80), udp(80)))
	d.expect("web", "192.0.2.7")
	d.mu.Lock()
	d.listen = map[Port]bool{tcp(80): true, tcp(9): true}
	d.mu.Unlock()
	d.expect("web", "")
}

// What belongs to other load balancers is left alone: by its class, or because they
// have written an address.
func TestOthersAreLeftAlone(t *testing.T) {
	d := newDevice(t)
	class, ours := "example.com/lb", Class
	other, mine, metal := service("other", 3, tcp(80)), service("mine", 1, tcp(80)), service("metal", 2, tcp(81))
	other.Spec.LoadBalancerClass, mine.Spec.LoadBalancerClass = &class, &ours
	metal.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	d.create(other)
	d.create(metal)
	d.create(mine)
	d.expect("mine", "192.0.2.7")
	d.expect("other", "")
	d.expect("metal", "203.0.113.1")
}
