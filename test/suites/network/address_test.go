package network

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// back is the promise: peers are back within it.
const back = 30 * time.Second

// Whatever happens to cables and addresses, the node is the same Node with the same
// address, certificates and pods, and its peers are back soon.
func TestNodeAddress(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	pod(t, ctx, a, "web")
	pod(t, ctx, b, "far")
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "delete", "pod", "web", "--wait") })
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, b, "delete", "pod", "far", "--wait") })
	far := through(t, ctx, a, b, labtest.Kubectl(t, ctx, b, "get", "pod", "far", "-o", "jsonpath={.status.podIP}"))
	answers := func(ctx context.Context) error {
		_, err := a.Kubectl(ctx, "exec", "web", "--", "web", "get", "http://"+far+":8080/")
		return err
	}
	within(t, ctx, back, "pod far answers at the start", answers)
	before := identity(t, ctx, a, "web")
	if route := labtest.Must(t, ctx, a, "ip", "route", "show", "default"); route != "" {
		t.Fatalf("the device has a default route, so this tests less than it says: %s", route)
	}

	for _, story := range []struct {
		name string
		away func() error // after it nobody may be there
		home func() error // after it the peer is
	}{
		{"the cable out and in again",
			func() error { return a.Plug("eth0", false) },
			func() error { return a.Plug("eth0", true) }},
		{"another address by DHCP", nil,
			func() error { _, err := a.Renumber(ctx); return err }},
		{"Wi-Fi in place of Ethernet", nil,
			func() error {
				if _, err := a.AddInterface("wlan0"); err != nil {
					return err
				}
				return a.Plug("eth0", false)
			}},
		{"Ethernet again",
			func() error { return a.Plug("wlan0", false) },
			func() error { return a.Plug("eth0", true) }},
		{"the router gives out another subnet",
			func() error { return a.SetAddress("eth0", "192.168.50.11/24") },
			func() error { return b.SetAddress("eth0", "192.168.50.12/24") }},
		{"carried to another network and back",
			func() error { return a.SetAddress("eth0", "172.30.7.7/16") },
			func() error { return a.SetAddress("eth0", "192.168.50.13/24") }},
	} {
		t.Run(story.name, func(t *testing.T) {
			if story.away != nil {
				if err := story.away(); err != nil {
					t.Fatal(err)
				}
				if st := status(t, ctx, a); !st.Ready {
					t.Errorf("not ready without a network: %s", st.Waiting)
				}
				if got := identity(t, ctx, a, "web"); got != before {
					t.Errorf("alone it is another:\n%s\nwas\n%s", got, before)
				}
			}
			if err := story.home(); err != nil {
				t.Fatal(err)
			}
			within(t, ctx, back, "pod far answers", answers)
			for _, d := range []*lab.Device{a, b} {
				if err := d.WaitPeered(ctx, 1); err != nil {
					t.Fatal(err)
				}
			}
			if got := identity(t, ctx, a, "web"); got != before {
				t.Errorf("it is another:\n%s\nwas\n%s", got, before)
			}
		})
	}
}

// identity is what must never change: the Node object with its addresses, the
// certificates that are served, and the pod in its container.
func identity(t *testing.T, ctx context.Context, d *lab.Device, pod string) string {
	t.Helper()
	node := labtest.Kubectl(t, ctx, d, "get", "node", d.Name, "-o",
		`jsonpath={.metadata.uid} {.metadata.creationTimestamp} {.status.addresses} {.spec} ready={.status.conditions[?(@.type=="Ready")].status}`)
	p := labtest.Kubectl(t, ctx, d, "get", "pod", pod, "-o",
		`jsonpath={.metadata.uid} {.status.podIP} {.status.hostIP} {.status.containerStatuses[0].containerID} restarts={.status.containerStatuses[0].restartCount}`)
	return node + "\n" + p + "\n" + strings.Join(served(t, ctx, d), "\n")
}

// served are the fingerprints of the API server's and the kubelet's certificates.
func served(t *testing.T, ctx context.Context, d *lab.Device) (out []string) {
	t.Helper()
	node := status(t, ctx, d).NodeAddress
	for _, port := range []int{6443, 10250} {
		c, err := certificate(ctx, d, node, port)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d %x", port, sha256.Sum256(c.Raw)))
	}
	return out
}

// certificate is what a port of the node serves.
func certificate(ctx context.Context, d *lab.Device, node string, port int) (*x509.Certificate, error) {
	raw, err := d.Dial(ctx, "tcp", fmt.Sprintf("%s:%d", node, port))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) // looked at, not trusted
	defer conn.Close()
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("port %d: %w", port, err)
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}

// through is the address under which from's pods see a pod of to.
func through(t *testing.T, ctx context.Context, from, to *lab.Device, addr string) string {
	t.Helper()
	for _, p := range status(t, ctx, from).Peers {
		if p.Name == to.Name {
			pod, prefix := netip.MustParseAddr(addr).As4(), p.PeerMappedCIDR.Addr().As4()
			return netip.AddrFrom4([4]byte{prefix[0], prefix[1], pod[2], pod[3]}).String()
		}
	}
	t.Fatalf("%s does not know %s", from.Name, to.Name)
	return ""
}
