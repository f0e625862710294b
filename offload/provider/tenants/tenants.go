// Package tenants removes what consumers leave behind: twins of clusters that are no longer peers, that were switched
// off for good, or that were rebuilt with another identity. It reads the twin namespaces and the senders of requests.
// It alone writes SilentAnnotation, and deletes twins whose consumer was silent for longer than its limit. Silence is
// counted while this process runs, not by the clock: a provider that was off for a month, or starts with a wrong clock,
// ends no pods. Restart: the count is in the annotation, at most an hour behind. Failure: the deletion of a twin is
// retried at the next check, and it stays in `rivulet tenants`.
package tenants

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/policy"
)

// SilentAnnotation on a twin is how long its consumer has been silent.
const SilentAnnotation = "rivulet.dev/silent-for"

const (
	// PeerLimit is how long a peer may be silent before its twins are deleted: a home that is off during a holiday
	// finds its pods again.
	PeerLimit = 30 * 24 * time.Hour
	// StrangerLimit is the limit of a cluster that is not a peer although the peering was not ended (after an end twins
	// are deleted at once). A provider that lost its records and waits for its owner's approval must not delete its
	// tenants.
	StrangerLimit = 24 * time.Hour
	// checkEvery is the interval of checks; save how far the annotation may be behind.
	checkEvery = 10 * time.Minute
	save       = time.Hour
)

// Config are the dependencies of a Tracker. Client, IsPeer and Log are required.
type Config struct {
	Client kubernetes.Interface
	// IsPeer reports whether the cluster is a peer, reachable or not.
	IsPeer func(peer.ID) bool
	// Stays reports whether the twins of a consumer stay however long it is silent; nil are none.
	Stays func(peer.ID) bool
	// PeerID identifies the sender of a request; nil is rpc.PeerID.
	PeerID func(*http.Request) (peer.ID, bool)
	Log    *slog.Logger
	// Every is the interval of checks; zero is ten minutes.
	Every time.Duration
}

// Tracker follows the consumers with twins here: tenants.
type Tracker struct {
	cfg Config

	mu     sync.Mutex
	open   map[peer.ID]int  // requests under way
	seen   map[peer.ID]bool // since the last check
	called map[peer.ID]bool // since the start: what the annotations of their twins say is older
	silent map[peer.ID]time.Duration
	poke   chan struct{}
}

// New makes a Tracker; Run starts them.
func New(cfg Config) *Tracker {
	if cfg.Every == 0 {
		cfg.Every = checkEvery
	}
	if cfg.Stays == nil {
		cfg.Stays = func(peer.ID) bool { return false }
	}
	if cfg.PeerID == nil {
		cfg.PeerID = rpc.PeerID
	}
	return &Tracker{cfg: cfg, open: map[peer.ID]int{}, seen: map[peer.ID]bool{}, called: map[peer.ID]bool{}, silent: map[peer.ID]time.Duration{}, poke: make(chan struct{}, 1)}
}

// Observe records the senders of requests to h. A request that lasts, such as a watch, counts all the time.
func (g *Tracker) Observe(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, ok := g.cfg.PeerID(r); ok && g.cfg.IsPeer(id) {
			g.enter(id)
			defer g.leave(id)
		}
		h.ServeHTTP(w, r)
	})
}

// Received records a sign of life that another cluster has sent for the consumer.
func (g *Tracker) Received(id peer.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.observe(id)
}

func (g *Tracker) enter(id peer.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[id]++
	g.observe(id)
}

// observe resets a recorded silence at once: after a restart the count would continue from it.
func (g *Tracker) observe(id peer.ID) {
	g.seen[id], g.called[id] = true, true
	if g.silent[id] > 0 {
		delete(g.silent, id)
		changes.Poke(g.poke)
	}
}

func (g *Tracker) leave(id peer.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[id]--; g.open[id] == 0 {
		delete(g.open, id)
	}
	g.observe(id)
}

// Silence is how long a consumer has been silent, and after how much more silence its twins are deleted.
type Silence struct {
	For  time.Duration
	Left time.Duration
}

// Silence returns that of a consumer as of the last check; zero while it sends requests.
func (g *Tracker) Silence(id peer.ID) Silence {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, ok := g.silent[id]
	if !ok || g.open[id] > 0 {
		return Silence{}
	}
	return Silence{For: d, Left: max(0, g.limit(id)-d)}
}

func (g *Tracker) limit(id peer.ID) time.Duration {
	if g.cfg.IsPeer(id) {
		return PeerLimit
	}
	return StrangerLimit
}

// Run checks the tenants until ctx ends.
func (g *Tracker) Run(ctx context.Context) error {
	tick := time.NewTicker(g.cfg.Every)
	defer tick.Stop()
	for last := time.Now(); ; {
		now := time.Now()
		counted, err := g.round(ctx, now.Sub(last))
		if counted {
			last = now // what failed after that is retried, and counts no time again
		}
		if err != nil && ctx.Err() == nil {
			g.cfg.Log.Warn("tenants were not all looked at; again in a while", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-g.poke:
		}
	}
}

// round adds the passed time, and deletes twins above the limit. counted reports whether the time was added, also with
// an error.
func (g *Tracker) round(ctx context.Context, passed time.Duration) (counted bool, err error) {
	list, err := g.cfg.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel, ResourceVersion: "0"})
	if err != nil {
		return false, fmt.Errorf("tenants: list twins: %w", err)
	}
	silence := g.count(list.Items, passed)
	var errs []error
	for i := range list.Items {
		ns := &list.Items[i]
		if ns.DeletionTimestamp != nil {
			continue
		}
		id := peer.ID(ns.Labels[policy.OriginLabel])
		d, silent := silence[id]
		// Never in the first check, so that consumers have time to return after a start.
		if silent && passed > 0 && d >= g.limit(id) {
			errs = append(errs, g.end(ctx, ns, id, d))
			continue
		}
		errs = append(errs, g.note(ctx, ns, d, silent))
	}
	return true, errors.Join(errs...)
}

// count returns how long each silent consumer has been silent.
func (g *Tracker) count(twins []corev1.Namespace, passed time.Duration) map[peer.ID]time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	saved := map[peer.ID]time.Duration{}
	for i := range twins {
		id := peer.ID(twins[i].Labels[policy.OriginLabel])
		d, _ := time.ParseDuration(twins[i].Annotations[SilentAnnotation]) // unreadable counts as zero
		saved[id] = max(saved[id], d)
	}
	next := map[peer.ID]time.Duration{}
	for id, d := range saved {
		if g.seen[id] || g.open[id] > 0 || g.cfg.Stays(id) {
			continue
		}
		if known, ok := g.silent[id]; ok || g.called[id] {
			d = known
		}
		next[id] = max(0, d) + passed
	}
	maps.DeleteFunc(g.called, func(id peer.ID, _ bool) bool { _, ok := saved[id]; return !ok })
	g.silent = next
	clear(g.seen)
	return maps.Clone(next)
}

// note writes the count if it differs enough from the written one, and removes it from the twin of a consumer that
// sends requests.
func (g *Tracker) note(ctx context.Context, ns *corev1.Namespace, d time.Duration, silent bool) error {
	was, written := ns.Annotations[SilentAnnotation]
	value := "null"
	switch before, _ := time.ParseDuration(was); {
	case !silent && !written, silent && d-before < save:
		return nil
	case silent:
		value = fmt.Sprintf("%q", d.Round(time.Minute).String())
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, SilentAnnotation, value)
	_, err := g.cfg.Client.CoreV1().Namespaces().Patch(ctx, ns.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: policy.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tenants: twin %s: %w", ns.Name, err)
	}
	return nil
}

func (g *Tracker) end(ctx context.Context, ns *corev1.Namespace, id peer.ID, d time.Duration) error {
	if kept, err := g.keepsData(ctx, ns.Name); kept || err != nil {
		return err
	}
	err := g.cfg.Client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ns.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tenants: delete twin %s: %w", ns.Name, err)
	}
	g.cfg.Log.Info("a twin is deleted: its consumer has been silent for too long", "twin", ns.Name,
		"peer", id.Short(), "silent", d.Round(time.Minute), "limit", g.limit(id))
	return nil
}
