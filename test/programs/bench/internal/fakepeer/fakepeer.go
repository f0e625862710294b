// Package fakepeer is a cluster without Kubernetes: discovery, trust, peering, tunnel
// and the stream of offers are the product's own, so that to a device it is a peer like
// any other, and it costs 40 MB. A hundred of them fit on a machine with two cores. One whose device is itself is a hub: the others'
// peer, which follows their offers.
//
// A fake is a process in a network namespace of its own, this program under another
// name. It writes nothing but lines to its standard output and ends with its input.
package fakepeer

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/offload/offer"
	"rivulet/offload/target"
	offers "rivulet/offload/target/peer"
)

// Name is that of the program when it is to be a fake.
const Name = "rivulet-fakepeer"

// The environment says what to be called and which address is that of the device; all
// others of the room are let alone.
const (
	nameEnv   = "FAKEPEER_NAME"
	deviceEnv = "FAKEPEER_DEVICE"
	dirEnv    = "FAKEPEER_DIR"
	debugEnv  = "FAKEPEER_DEBUG" // log more
)

// Report is one line of a fake: seconds since it began to announce itself.
type Report struct {
	Discovered float64 `json:"discovered,omitempty"`
	Connected  float64 `json:"connected,omitempty"`
}

// Main is the fake.
func Main() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	level := slog.LevelWarn
	if os.Getenv(debugEnv) != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	device, err := netip.ParseAddr(os.Getenv(deviceEnv))
	if err != nil {
		return fmt.Errorf("fakepeer: %w", err)
	}
	server := tunnel.NewServer(tunnel.HelperVersion, log)
	serving := make(chan error, 1)
	socket := filepath.Join(os.Getenv(dirEnv), os.Getenv(nameEnv)+".sock")
	go func() { serving <- server.Serve(ctx, socket) }()
	defer func() { <-serving }()
	defer cancel()

	lans := netmon.New(log)
	go lans.Run(ctx)
	cfg, err := config(log, device, lans, plane{server, tunnel.NewController(tunnel.ControllerConfig{Socket: socket})})
	if err != nil {
		return err
	}
	f, err := fabric.New(cfg)
	if err != nil {
		return err
	}
	f.Handle("GET /v1/offer", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { offer.Stream(w, r, lends, nil) }))
	f.Handle("GET /v1/namespaces", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"twins":{}}`) }))
	if lans.LANs().Own(device) {
		go borrow(ctx, f, log)
	} else {
		go tell(ctx, f, device)
	}
	return f.Run(ctx)
}

func config(log *slog.Logger, device netip.Addr, lans *netmon.Monitor, data plane) (fabric.Config, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fabric.Config{}, err
	}
	name := os.Getenv(nameEnv)
	id, err := rpc.NewIdentity(key, name)
	if err != nil {
		return fabric.Config{}, err
	}
	wg := make([]byte, 32)
	rand.Read(wg)
	return fabric.Config{
		Identity: id, Name: name, Version: "fake", KubeVersion: func() string { return "v1.35.0" },
		Port: 7442, TunnelPort: 7442, Interface: "riv0",
		PodCIDR: podCIDR, ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"), TunnelAddress: netip.MustParseAddr("10.42.255.254"),
		WireGuardKey: base64.StdEncoding.EncodeToString(wg), Store: &store{}, DataPlane: data,
		Sources: []discovery.Source{mdns.New(lans, mdns.DefaultTiming, log)}, LANs: lans,
		Trust: fabric.Policy{Mode: pairing.ModeLAN}, OnLink: func(a netip.Addr) bool { return a == device || lans.LANs().Own(device) }, Log: log,
	}, nil
}

// tell reports when the device was found and when it answered through the tunnel.
func tell(ctx context.Context, f *fabric.Fabric, device netip.Addr) {
	begun := time.Now()
	changed, stop := f.Changed()
	defer stop()
	out := json.NewEncoder(os.Stdout)
	var r Report
	for ctx.Err() == nil && r.Connected == 0 {
		for _, v := range f.Peers() {
			if v.Control.Addr() != device {
				continue
			}
			if r.Discovered == 0 {
				r.Discovered = time.Since(begun).Seconds()
			}
			if v.State == peer.Connected {
				r.Connected = time.Since(begun).Seconds()
			}
		}
		if r.Connected > 0 {
			out.Encode(r)
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// lends is one CPU that nobody gets: the fake runs nothing.
func lends() offer.Offer {
	return offer.Offer{
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
			corev1.ResourcePods: resource.MustParse("10"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi"),
		},
		Architecture: runtime.GOARCH, OS: "linux", KubeVersion: "v1.35.0", Ready: true,
	}
}

// borrow follows the offers of all peers, as the consumer of a device does.
func borrow(ctx context.Context, f *fabric.Fabric, log *slog.Logger) {
	source := offers.Source{Fabric: f, PodCIDR: podCIDR, Consumer: &borrower{ctx: ctx, log: log, following: map[string]context.CancelFunc{}}, Moved: new(changes.Signal)}
	source.Run(ctx)
}

// borrower is a consumer with a pod at each peer, so that each sends its offers as often as it may.
type borrower struct {
	ctx context.Context
	log *slog.Logger

	mu        sync.Mutex
	following map[string]context.CancelFunc
}

func (b *borrower) SetTargets(_ target.Kind, all []target.Spec, _ bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range all {
		if b.following[s.ID] != nil {
			continue
		}
		t, err := s.New(s.Name, b.log)
		if err != nil {
			b.log.Error("a target", "err", err)
			continue
		}
		ctx, stop := context.WithCancel(b.ctx)
		b.following[s.ID] = stop
		go func() {
			for range t.Offers(ctx) {
			}
		}()
	}
}

func (b *borrower) End(ids ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if stop := b.following[id]; stop != nil {
			stop()
			delete(b.following, id)
		}
	}
}

func (b *borrower) Existing(context.Context, target.Kind) (nodes, used map[string]bool, err error) {
	return nil, nil, nil
}

func (b *borrower) Busy(string) bool { return true }

var podCIDR = netip.MustParsePrefix("10.42.0.0/16")

// plane is the data plane in this very process; watch tells its paths.
type plane struct {
	server *tunnel.Server
	watch  *tunnel.Controller
}

func (p plane) WatchPaths(ctx context.Context, changed func()) error {
	return p.watch.WatchPaths(ctx, changed)
}

func (p plane) Apply(_ context.Context, cfg tunnel.Config) error { return p.server.Apply(cfg) }
func (p plane) Status(context.Context) (tunnel.Status, error)    { return p.server.Status() }

// store keeps records in memory: a fake lives once.
type store struct {
	mu      sync.Mutex
	records map[peer.ID]peer.Record
}

func (s *store) PutPeer(r peer.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil {
		s.records = map[peer.ID]peer.Record{}
	}
	s.records[r.ID] = r
	return nil
}

func (s *store) DeletePeer(id peer.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
	return nil
}

func (s *store) Peers() (out []peer.Record, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		out = append(out, r)
	}
	return out, nil
}

var errEnded = errors.New("fakepeer: it ended")
