package homeaddr

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/elsewhere"
	"rivulet/offload/policy"
	"rivulet/test/harness/testns"
)

// home is a pod at alice's home, behind the tunnel. At home it has the number that a1 has here.
func (s *stage) home() {
	r := testns.New(s.t)
	s.host.Cable("up", r, "down")
	s.host.Do(func() error {
		if err := testns.Give("up", "192.0.3.1/24"); err != nil {
			return err
		}
		return testns.Route("240.5.0.0/16", "192.0.3.2")
	})
	r.Do(func() error {
		for _, a := range []string{"192.0.3.2/24", "240.5.0.11/32"} {
			if err := testns.Give("down", a); err != nil {
				return err
			}
		}
		_, pods, err := net.ParseCIDR("10.42.0.0/16")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: pods, Gw: net.ParseIP("192.0.3.1"), Src: net.ParseIP("240.5.0.11")})
	})
	s.rooms["home"] = r
	s.serve(r, "home")
}

func (s *stage) addresses(name string) (out string) {
	s.rooms[name].Do(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(eth, netlink.FAMILY_V4)
		for _, a := range all {
			out += a.IPNet.String() + " "
		}
		return err
	})
	return strings.TrimSpace(out)
}

// meets has two pods meet: to listens on its own address at home, and the answer is how it
// sees from, and whom from has reached.
func (s *stage) meets(from, to, own string) (seen, reached string) {
	s.t.Helper()
	var l net.Listener
	s.rooms[to].Do(func() (err error) {
		l, err = net.Listen("tcp", own+":0")
		return err
	})
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
		c.Close()
	}()
	s.rooms[from].Do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 20*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		reached = c.RemoteAddr().(*net.TCPAddr).IP.String()
		_, err = fmt.Fscanln(c, &seen)
		return err
	})
	return seen, reached
}

// refused sends a datagram to a port that nobody listens on, and waits for the error.
func (s *stage) refused(from, at string) (ok bool) {
	s.rooms[from].Do(func() error {
		c, err := net.Dial("udp", at)
		if err != nil {
			return err
		}
		defer c.Close()
		for end := time.Now().Add(20 * time.Second); !ok && time.Now().Before(end); {
			_, _ = c.Write([]byte("?"))
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			_, err := c.Read(make([]byte, 1))
			ok = errors.Is(err, syscall.ECONNREFUSED)
		}
		return nil
	})
	return ok
}

// associates begins an SCTP association as far as its second packet, and returns who the server has seen. The packets are made
// by hand: kernels need no SCTP to pass it on.
func (s *stage) associates(from, to, at string) (seen string) {
	chunk := func(kind byte, tag, initial uint32) []byte {
		b := binary.BigEndian.AppendUint16(nil, 3868)
		b = binary.BigEndian.AppendUint16(b, 3868)
		b = binary.BigEndian.AppendUint32(b, tag)
		b = append(b, 0, 0, 0, 0, kind, 0, 0, 20)
		b = binary.BigEndian.AppendUint32(b, initial)
		b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		return b
	}
	init, answer := chunk(1, 0, 7), chunk(2, 7, 9)
	var server, client net.PacketConn
	listen := func(at *net.PacketConn) func() error {
		return func() (err error) { *at, err = net.ListenPacket("ip4:132", "0.0.0.0"); return err }
	}
	s.rooms[to].Do(listen(&server))
	defer server.Close()
	s.rooms[from].Do(listen(&client))
	defer client.Close()
	b := make([]byte, 256)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); { // a packet may be lost for want of a neighbour's address
		if _, err := client.WriteTo(init, &net.IPAddr{IP: net.ParseIP(at)}); err != nil {
			s.t.Error(err)
			return ""
		}
		_ = server.SetReadDeadline(time.Now().Add(time.Second))
		n, who, err := server.ReadFrom(b)
		if err != nil || !bytes.Equal(b[:n], init) {
			continue
		}
		if _, err := server.WriteTo(answer, who); err != nil {
			s.t.Error(err)
			return ""
		}
		_ = client.SetReadDeadline(time.Now().Add(time.Second))
		if n, back, err := client.ReadFrom(b); err == nil && bytes.Equal(b[:n], answer) && back.String() == at {
			return who.String()
		}
	}
	return ""
}

// quiet is a connection from one room to another on which nothing is said.
func (s *stage) quiet(from, to, at string) (c net.Conn) {
	s.rooms[to].Do(func() error {
		l, err := net.Listen("tcp", netip.AddrPortFrom(netip.IPv4Unspecified(), netip.MustParseAddrPort(at).Port()).String())
		if err == nil {
			s.t.Cleanup(func() { l.Close() })
		}
		return err
	})
	s.rooms[from].Do(func() (err error) { c, err = net.DialTimeout("tcp", at, 20*time.Second); return err })
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Pods live in the addresses of their homes, which are the same for alice and bob: on their
// interfaces, with each other, and with a pod at home that has the number of one of them here.
func TestPodsLiveInHomesAddresses(t *testing.T) {
	if !Lives() {
		t.Fatal("this kernel has no nftables for ARP")
	}
	s := newStage(t)
	s.home()
	p := s.supervisor()
	end := s.run(p)
	for name, at := range map[string]string{"a1": "10.42.0.11", "a2": "10.42.0.12"} {
		if own := s.live(p, name, at, alice); own != addr(strings.Replace(at, "10.42", "240.3", 1)) {
			t.Errorf("%s is told %s", name, own)
		}
	}
	s.live(p, "b1", "10.42.0.13", bob)
	if got := s.addresses("a1"); got != "240.3.0.11/32" {
		t.Errorf("a1 has %s", got)
	}
	s.want("a1", "240.3.0.12:80", "a2")
	s.want("a1", "240.3.0.11:80", "a1")
	s.want("a1", "10.43.5.5:80", "a2")
	s.want("a2", "10.43.5.5:80", "a2")
	s.want("b1", "10.43.5.5:80", "b2")
	s.want("a1", "10.42.0.11:80", "home") // at home, though it is the number of a1 here
	s.want("home", "10.42.0.11:80", "a1")
	s.want("own", "10.42.0.11:80", "a1") // on the bridge: it answers for its address here
	s.want("a1", "10.43.0.10:80", "own") // cluster DNS
	s.want("a1", "240.5.0.11:80", "")    // nobody's at home
	s.refuses("a1", "10.43.6.6:80")      // a Service of nobody's at home
	if seen, reached := s.meets("a2", "a1", "240.3.0.11"); seen != "240.3.0.12" || reached != "240.3.0.11" {
		t.Errorf("a1 sees a2 as %s, which has reached %s", seen, reached)
	}
	for at, want := range map[string][2]string{"240.3.0.12": {"a2", "240.3.0.11"}, "10.42.0.11": {"home", "10.42.0.11"}, "10.43.5.5": {"a2", "240.3.0.11"}} {
		if seen := s.associates("a1", want[0], at); seen != want[1] { // home's tunnel is not in the stage
			t.Errorf("SCTP to %s comes to %s from %q", at, want[0], seen)
		}
	}
	for _, at := range []string{"240.3.0.12:80", "10.42.0.11:80", "10.43.5.5:80"} {
		for _, size := range []int{1, 1400, 5000, 60000} {
			if !s.comesBack("a1", at, size) {
				t.Errorf("%d bytes of UDP do not come back from %s", size, at)
			}
		}
	}
	for from, at := range map[string]string{"a1": "240.3.0.12:9", "a2": "10.42.0.11:9", "home": "10.42.0.12:9", "own": "10.42.0.11:9"} {
		if !s.refused(from, at) {
			t.Errorf("%s is not told that nobody listens at %s", from, at)
		}
	}
	// The kubelet's probes.
	s.host.Do(func() error {
		c, err := net.DialTimeout("tcp", "10.42.0.11:80", 20*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	waits := s.quiet("a1", "home", "10.42.0.11:99")
	// It stays while nobody is there, and follows when home sees this cluster otherwise.
	end()
	s.want("a1", "240.3.0.12:80", "a2")
	p = s.supervisor()
	s.mu.Lock()
	s.views[alice] = View{{netip.MustParsePrefix("240.4.0.0/16"), s.views[alice][0].Here}, s.views[alice][1]}
	s.mu.Unlock()
	s.run(p)
	s.until("the pods have followed", func() bool { return s.addresses("a1") == "240.4.0.11/32" && s.addresses("a2") == "240.4.0.12/32" })
	_ = waits.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := waits.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("who waits at the former address: %v, want an error at once", err)
	}
	s.want("a1", "240.4.0.12:80", "a2")
	s.want("a1", "10.42.0.11:80", "home")
	if got := s.addresses("b1"); got != "240.3.0.13/32" {
		t.Errorf("b1 has %s", got)
	}
	// Without a link the pods stay as they are, and no other one starts.
	s.mu.Lock()
	delete(s.views, alice)
	s.mu.Unlock()
	s.changed <- struct{}{}
	s.until("it shows", func() bool { return !s.noProblem() })
	s.want("a1", "240.4.0.12:80", "a2")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if _, err := p.Hold(ctx, madeOf("b2", "10.42.0.14"), alice, true); err == nil {
		t.Error("a pod starts of which nobody knows how its home sees it")
	}
}

// A view is one to one, and what one side calls otherwise leads nowhere.
func TestViewIsOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := func(name string) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{rapid.SampledFrom([]byte{10, 240}).Draw(t, name), byte(rapid.IntRange(0, 3).Draw(t, name)), 1, 1}), rapid.SampledFrom([]int{16, 16, 16, 24}).Draw(t, name))
		}
		pods := block("pods").Masked()
		v := ViewOf([]peer.Link{{ID: alice, PeerCIDR: block("peer"), PeerMappedCIDR: block("mapped"), LocalMappedCIDR: block("local")}, {ID: bob, PeerMappedCIDR: block("bob")}, {ID: "c", PeerMappedCIDR: block("c")}},
			alice, pods, elsewhere.Under{Prefixes: map[peer.ID]netip.Prefix{bob: block("bob at home"), "c": block("c at home")}, Relayed: map[netip.Addr]netip.Addr{block("relayed").Addr(): block("by").Addr()}})
		a := netip.AddrFrom4([4]byte{rapid.SampledFrom([]byte{10, 240, 8}).Draw(t, "a"), byte(rapid.IntRange(0, 3).Draw(t, "b")), byte(rapid.IntRange(0, 1).Draw(t, "c")), byte(rapid.IntRange(0, 3).Draw(t, "d"))})
		if here, ok := v.ToHere(a); ok {
			if back, ok := v.ToHome(here); !ok || back != a {
				t.Fatalf("%v: %s is %s here, which is %s %v", v, a, here, back, ok)
			}
		}
		if home, ok := v.ToHome(a); ok {
			if back, ok := v.ToHere(home); !ok || back != a {
				t.Fatalf("%v: %s is %s at home, which is %s %v", v, a, home, back, ok)
			}
		}
		if v == nil {
			if _, ok := v.ToHome(a); ok {
				t.Fatal("something is known without a link")
			}
		}
	})
}

// What a pod is told is in its volume, whatever it has put there, and nothing else is touched.
func TestTell(t *testing.T) {
	kubelet, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("the owner's"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab-x", Name: "db-0", UID: "u1", Annotations: map[string]string{policy.HomeNamespaceAnnotation: "lab"}},
		Spec: corev1.PodSpec{Hostname: "db-0", Subdomain: "db", HostAliases: []corev1.HostAlias{{IP: "10.43.0.1", Hostnames: []string{"kubernetes", "api"}}},
			Volumes: []corev1.Volume{{Name: policy.HomeVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
	if err := Write(kubelet, pod, addr("240.3.0.7")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the volume: %v", err)
	}
	volume := filepath.Join(kubelet, "pods", "u1", "volumes", "kubernetes.io~empty-dir", policy.HomeVolume)
	if err := os.MkdirAll(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{policy.HomeAddressFile, policy.HomeHostsFile, policy.HomeHostsFile + ".new"} {
		if err := os.Symlink(secret, filepath.Join(volume, name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Write(kubelet, pod, addr("240.3.0.7")); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		policy.HomeAddressFile: "POD_IP='240.3.0.7'\n",
		policy.HomeHostsFile:   "\n240.3.0.7\tdb-0.db.lab.svc.cluster.local\tdb-0\n\n# Entries added by HostAliases.\n10.43.0.1\tkubernetes\tapi\n",
	} {
		got, err := os.ReadFile(filepath.Join(volume, name))
		if err != nil || !strings.HasSuffix(string(got), want) {
			t.Errorf("%s: %q (%v), want %q", name, got, err, want)
		}
	}
	// What a kubelet at home writes where the host name is the full one (managedHostsFileContent), or another.
	for over, want := range map[string]string{"db-0.db.lab.svc.cluster.local": "240.3.0.7\tdb-0.db.lab.svc.cluster.local\tdb-0\n", "other": "240.3.0.7\tother\n"} {
		pod.Spec.HostnameOverride = &over
		if got := hosts(pod, addr("240.3.0.7")); !strings.Contains(got, want) {
			t.Errorf("with host name %s: %q", over, got)
		}
	}
	if got, _ := os.ReadFile(secret); string(got) != "the owner's" {
		t.Errorf("what the pod's link led to has %q", got)
	}
	pod.Spec.Volumes = nil
	if err := Write(kubelet, pod, addr("240.3.0.7")); err == nil {
		t.Error("a volume that the pod has not is written to")
	}
	pod.UID = "../../u1"
	if err := Write(kubelet, pod, addr("240.3.0.7")); err == nil {
		t.Error("a path is a UID")
	}
}
