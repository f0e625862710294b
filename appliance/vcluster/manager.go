// Package vcluster keeps the virtual clusters of a device: control planes of their own, each a
// process of this executable while somebody uses it, and nothing but a listening socket while
// nobody does. Package tenant is what runs in the process; docs/design/vclusters.md has all of it.
//
// It reads what is asked of a Keeper. It alone writes <state>/vclusters/NAME and
// <run>/vcluster-NAME.pid, serves each the routes of the host's provider (see Handle), holds the listening sockets, and starts and ends the processes.
// Restart: processes go on without the supervisor, and are found again by number and start
// time, their sockets with them. Failure as the user sees it: state Failed with the reason in
// `rivulet vcluster list`; clients that wait are refused, and the next one has it tried again.
package vcluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
)

// Config is what a Keeper needs. All of it but Addresses is required.
type Config struct {
	State, Run string // Rivulet's folders
	Executable string
	// Address is where virtual clusters answer.
	Address netip.Addr
	// Services are the addresses of a virtual cluster's Services.
	Services netip.Prefix
	// Pods are the addresses of the host's pods.
	Pods netip.Prefix
	// Addresses are the pods' by which API servers reach their own; nil is none.
	Addresses Addresses
	Log       *slog.Logger
}

// Limits of what a device keeps.
const (
	// MaxClusters is how many virtual clusters a device has at most.
	MaxClusters = 200
	// maxName is the longest name, so that names made of it are valid.
	maxName = 40
	// DefaultSleep is how long nobody may use a virtual cluster before it sleeps.
	DefaultSleep = 30 * time.Minute
	// minSleep is the shortest.
	minSleep = 10 * time.Second
	// DefaultMemory limits the process, bytes; minMemory is the least that a control plane starts in.
	DefaultMemory, minMemory = 512 << 20, 256 << 20
	// planeMemory is what a control plane has of its own when it is awake and little used, bytes. It does not depend on who
	// is awake: what is lent would change with each wake.
	planeMemory = 112 << 20
	// DefaultDatastore bounds the datastore, bytes; minDatastore is the least that a control plane has use of.
	DefaultDatastore, minDatastore = 256 << 20, 16 << 20
	// nearlyFull is from when on a datastore is reported, percent.
	nearlyFull = 80

	firstPort = 17000
	firstUID  = 2000742000
	firstWait = time.Second
	longWait  = 30 * time.Second
	// steady is how long one that crashed has to have run to be started again at once.
	steady = time.Minute
	// leastRest is how long one sleeps at least that is due again, failedRest one that failed to start.
	leastRest, failedRest = 15 * time.Second, 10 * time.Minute
	// fallingAsleep is what a process takes at most from its last look at the host until its end.
	fallingAsleep = 5 * time.Second
	// wakeLimit is how long a start may take until it is usable.
	wakeLimit = 3 * time.Minute
)

// pace has the times that tests shorten.
type pace struct {
	// replace is how long after an upgrade a process of the version before may run on.
	replace time.Duration
	// debt is how long one that sleeps is left to after something of it has changed at the host; what changes meanwhile is seen with it.
	debt time.Duration
}

var usualPace = pace{replace: 24 * time.Hour, debt: time.Minute}

// Spec is what is asked for.
type Spec struct {
	Name string `json:"name"`
	// Sleep is how long nobody may use it before it sleeps; 0 is never.
	Sleep time.Duration `json:"sleep"`
	// Memory limits its process, bytes.
	Memory int64 `json:"memory"`
	// Datastore bounds what its objects and their history take on the disk, bytes; 0 is the default.
	Datastore int64 `json:"datastore,omitempty"`
	// Quota bounds what its pods ask for (cpu, memory, pods) and its claims (storage); what is
	// not in it is bounded by what all virtual clusters have together.
	Quota corev1.ResourceList `json:"quota,omitempty"`
	// Guarantee is kept free for its pods (cpu, memory, pods), whatever the other virtual clusters use.
	Guarantee corev1.ResourceList `json:"guarantee,omitempty"`
}

// quotable is what a quota may have; a guarantee has no storage.
var quotable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceStorage}

const quotaHas = "cpu, memory, pods and storage"

// ParseQuota reads a quota or a guarantee, such as cpu=2,memory=4Gi,pods=20,storage=10Gi; none is no quota.
func ParseQuota(text string) (corev1.ResourceList, error) {
	if text == "none" {
		return nil, nil
	}
	out := corev1.ResourceList{}
	for entry := range strings.SplitSeq(text, ",") {
		name, amount, ok := strings.Cut(strings.TrimSpace(entry), "=")
		q, err := resource.ParseQuantity(amount)
		if !ok || err != nil {
			return nil, fmt.Errorf("%.40q is no amount of a resource; say it like cpu=2,memory=4Gi,pods=20,storage=10Gi, or none", entry)
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, checkQuota("quota", quotaHas, out, quotable)
}

func checkQuota(what, has string, quota corev1.ResourceList, may []corev1.ResourceName) error {
	for name, q := range quota {
		if !slices.Contains(may, name) {
			return fmt.Errorf("a %s has no %.40q; it has %s", what, name, has)
		}
		if q.Sign() < 0 {
			return fmt.Errorf("a %s of %s for %s is less than nothing; use 0 or more", what, q.String(), name)
		}
	}
	return nil
}

// Check completes the spec and returns what is wrong with it.
func (s *Spec) Check() error {
	if errs := validation.IsDNS1123Label(s.Name); len(errs) > 0 || len(s.Name) > maxName {
		return fmt.Errorf("%.60q is no name for a virtual cluster; use at most %d small letters, digits and dashes", s.Name, maxName)
	}
	if s.Sleep != 0 && s.Sleep < minSleep {
		return fmt.Errorf("a virtual cluster sleeps after %s or more, not %s; use 0 for never", minSleep, s.Sleep)
	}
	if s.Memory == 0 {
		s.Memory = DefaultMemory
	}
	if s.Memory < minMemory {
		return fmt.Errorf("a control plane does not start in %d MiB; give it %d MiB or more", s.Memory>>20, minMemory>>20)
	}
	if s.Datastore == 0 {
		s.Datastore = DefaultDatastore
	}
	if s.Datastore < minDatastore {
		return fmt.Errorf("a datastore of %d MiB is too small for a control plane; give it %d MiB or more", s.Datastore>>20, minDatastore>>20)
	}
	for name, least := range s.Guarantee {
		if most, bounded := s.Quota[name]; bounded && most.Cmp(least) < 0 {
			return fmt.Errorf("a guarantee of %s %s is more than the quota of %s; raise the quota, or lower the guarantee", least.String(), name, most.String())
		}
	}
	return errors.Join(checkQuota("quota", quotaHas, s.Quota, quotable), checkQuota("guarantee", "cpu, memory and pods", s.Guarantee, quotable[:3]))
}

// datastore is the bound of one that was made before there was any, too.
func (s Spec) datastore() int64 { return cmp.Or(s.Datastore, DefaultDatastore) }

func (s Spec) withDefaults() Spec {
	s.Datastore = s.datastore()
	return s
}

// Change is what is to be another; nil stays.
type Change struct {
	Sleep     *time.Duration       `json:"sleep,omitempty"`
	Memory    *int64               `json:"memory,omitempty"`
	Datastore *int64               `json:"datastore,omitempty"`
	Quota     *corev1.ResourceList `json:"quota,omitempty"`
	// Guarantee is as that of Spec.
	Guarantee *corev1.ResourceList `json:"guarantee,omitempty"`
}

// Owner is the object of the home cluster that a virtual cluster is made of; empty for one that
// was made by a command.
type Owner struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

func (o Owner) String() string { return o.Namespace + "/" + o.Name }

// record is a virtual cluster on the disk.
type record struct {
	Spec
	Owner   Owner     `json:"owner,omitzero"`
	UID     int       `json:"uid"` // its process's user and group
	ID      peer.ID   `json:"id"`  // by which the host knows whose its pods are
	Port    uint16    `json:"port"`
	Created time.Time `json:"created"`
	Paused  bool      `json:"paused,omitempty"`
	// Due is when it has work of its own again; zero is never.
	Due time.Time `json:"due,omitzero"`
	// Restoring says that it is not whole yet, and goes if that is cut short.
	Restoring bool `json:"restoring,omitempty"`
	// Deleting says that only its removal is left to do.
	Deleting bool `json:"deleting,omitempty"`
}

// State is what a virtual cluster does.
type State string

// The states.
const (
	Starting State = "Starting"
	Awake    State = "Awake"
	Asleep   State = "Asleep"
	Paused   State = "Paused"
	Failed   State = "Failed"
	Deleting State = "Deleting"
)

// View is a virtual cluster as it is shown.
type View struct {
	Spec
	Owner   Owner          `json:"owner,omitzero"`
	Paused  bool           `json:"paused,omitempty"`
	State   State          `json:"state"`
	Reason  string         `json:"reason,omitempty"`
	Since   time.Time      `json:"since"`
	Address netip.AddrPort `json:"address"`
	Created time.Time      `json:"created"`
	PID     int            `json:"pid,omitempty"`
	// Old says that its process is of another version than the supervisor.
	Old bool `json:"old,omitempty"`
	// Private is the memory of its process alone, Disk what its datastore takes, bytes.
	Private int64 `json:"private"`
	Disk    int64 `json:"disk"`
	// Stored is what its objects and their history take of its datastore's bound, bytes.
	Stored int64 `json:"stored"`
	// Pods are those on the host that have not finished; Use is what they ask for, and its claims.
	Pods int                 `json:"pods"`
	Use  corev1.ResourceList `json:"use,omitempty"`
	// Took is how long the last start took until it was usable.
	Took time.Duration `json:"took,omitempty"`
}

// Manager keeps all virtual clusters. Its methods may be called at any time.
type Manager struct {
	cfg Config

	mu   sync.Mutex
	all  map[string]*cluster
	ctx  context.Context // of Run; nil before
	work sync.WaitGroup

	dial     func(ctx context.Context, network, addr string) (net.Conn, error) // a pod
	pace     pace
	turns    chan struct{}  // holds one for each that starts
	changed  changes.Signal // Consumers may be others
	states   changes.Signal // Briefs may be another
	routes   *http.ServeMux // of all virtual clusters
	routesMu sync.Mutex
	slots    map[string]*atomic.Pointer[http.Handler] // by pattern
	host     atomic.Pointer[Host]
	unread   atomic.Bool // there are some that could not be read
}

// New returns a Keeper with no virtual cluster; Run reads them.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, dial: (&net.Dialer{}).DialContext, pace: usualPace, all: map[string]*cluster{}, turns: make(chan struct{}, runtime.NumCPU()), routes: http.NewServeMux(), slots: map[string]*atomic.Pointer[http.Handler]{}}
}

func (k *Manager) folder() string { return filepath.Join(k.cfg.State, "vclusters") }

// Run keeps them until ctx ends; their processes go on. It may be called again.
func (k *Manager) Run(ctx context.Context, ready func()) error {
	records, err := k.load()
	if err != nil {
		return err
	}
	k.endStrays(ctx, records)
	k.mu.Lock()
	k.ctx, k.all = ctx, map[string]*cluster{}
	for _, r := range records {
		k.begin(r)
	}
	k.mu.Unlock()
	k.changed.Notify()
	ready()
	<-ctx.Done()
	k.mu.Lock()
	k.ctx = nil
	k.mu.Unlock()
	k.work.Wait()
	return nil
}

// begin has one kept. The lock is held.
func (k *Manager) begin(r record) *cluster {
	c := newCluster(k, r)
	k.keep(c)
	return c
}

func (k *Manager) keep(c *cluster) {
	k.all[c.name] = c
	ctx := k.ctx
	k.work.Go(func() {
		c.run(ctx)
		if c.gone {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.all, c.name)
			k.changed.Notify()
			k.states.Notify()
		}
		close(c.done)
	})
}

// recordName is the file in a virtual cluster's folder that makes it one.
const recordName = "vcluster.json"

func (k *Manager) load() (out []record, err error) {
	entries, err := os.ReadDir(k.folder())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, diskErr(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), restorePrefix) { // a restore that was cut short
			_ = os.RemoveAll(filepath.Join(k.folder(), e.Name()))
			continue
		}
		path := filepath.Join(k.folder(), e.Name(), recordName)
		raw, err := os.ReadFile(path)
		var r record
		switch {
		case errors.Is(err, fs.ErrNotExist): // a creation that was cut short, or the last of a removal
			k.cfg.Log.Warn("removing what is left of a virtual cluster that was never made, or is deleted", "folder", e.Name())
			err = os.RemoveAll(filepath.Join(k.folder(), e.Name()))
		case err == nil:
			if err = json.Unmarshal(raw, &r); err == nil && r.Name != e.Name() {
				err = errors.New("it is of another virtual cluster")
			}
			if err == nil && r.ID == "" { // of a version whose virtual clusters had no pods
				r.ID = newID()
				err = k.save(r)
			}
		}
		if err != nil {
			k.cfg.Log.Error("a virtual cluster cannot be read", "file", path, "err", err)
			k.unread.Store(true)
			continue
		}
		if r.Name != "" {
			r.Deleting = r.Deleting || r.Restoring
			out = append(out, r)
		}
	}
	return out, nil
}

func (k *Manager) save(r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	dir := filepath.Join(k.folder(), r.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return diskErr(err)
	}
	return writeFile(filepath.Join(dir, recordName), raw, 0o600, 0)
}

var errNone = errors.New("it is not there any more; see: rivulet vcluster list")

var errNotYet = errors.New("virtual clusters are not kept yet; try again in a moment, see: rivulet status")

// Create makes a virtual cluster, and starts it.
func (k *Manager) Create(spec Spec) (View, error) { return k.CreateFor(spec, Owner{}) }

// CreateFor makes that of an object.
func (k *Manager) CreateFor(spec Spec, owner Owner) (View, error) {
	if err := spec.Check(); err != nil {
		return View{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	r, err := k.newRecord(spec)
	if err != nil {
		return View{}, err
	}
	r.Owner = owner
	if err := k.save(r); err != nil {
		return View{}, err
	}
	c := k.begin(r)
	k.changed.Notify()
	c.wake()
	return c.view(), nil
}

// newRecord gives a virtual cluster what no other has. The lock is held.
func (k *Manager) newRecord(spec Spec) (r record, err error) {
	switch {
	case k.ctx == nil:
		return r, errNotYet
	case k.all[spec.Name] != nil:
		return r, fmt.Errorf("there is a virtual cluster %s already; see: rivulet vcluster list", spec.Name)
	case len(k.all) >= MaxClusters:
		return r, fmt.Errorf("there are %d virtual clusters, more are not kept; delete one: rivulet vcluster delete NAME", MaxClusters)
	}
	if _, err := os.Lstat(filepath.Join(k.folder(), spec.Name)); err == nil {
		return r, fmt.Errorf("%s is there, of a virtual cluster that cannot be read; restore its %s from a backup, or remove the folder", filepath.Join(k.folder(), spec.Name), recordName)
	}
	slot, used := 0, map[int]bool{}
	for _, c := range k.all {
		used[c.record().UID-firstUID] = true
	}
	for used[slot] || !k.free(slot) {
		slot++
	}
	return record{Spec: spec, UID: firstUID + slot, ID: newID(), Port: uint16(firstPort + slot), Created: time.Now().Truncate(time.Second)}, nil
}

// free reports whether the port of a slot can be had.
func (k *Manager) free(slot int) bool {
	l, err := listen(netip.AddrPortFrom(k.cfg.Address, uint16(firstPort+slot)))
	if err == nil {
		l.Close()
	}
	return err == nil || slot > 2*MaxClusters
}

func (k *Manager) get(name string) (*cluster, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx == nil {
		return nil, errNotYet
	}
	c := k.all[name]
	if c == nil {
		return nil, fmt.Errorf("there is no virtual cluster %.60q; see: rivulet vcluster list", name)
	}
	return c, nil
}

// StatesChanged tells that Briefs may be another.
func (k *Manager) StatesChanged() (<-chan struct{}, func()) { return k.states.Changed() }

// Briefs returns all, by name, without what has to be measured: memory, disk and use.
func (k *Manager) Briefs() []View { return k.views((*cluster).brief) }

// List returns all, by name.
func (k *Manager) List() []View { return k.views((*cluster).view) }

func (k *Manager) views(of func(*cluster) View) []View {
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.all))
	k.mu.Unlock()
	out := make([]View, 0, len(all))
	for _, c := range all {
		out = append(out, of(c))
	}
	slices.SortFunc(out, func(a, b View) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Get returns one.
func (k *Manager) Get(name string) (View, error) {
	c, err := k.get(name)
	if err != nil {
		return View{}, err
	}
	return c.view(), nil
}

// Pause ends its control plane until Resume; requests do not wake it.
func (k *Manager) Pause(name string) error { return k.setPaused(name, true) }

// Resume starts it again.
func (k *Manager) Resume(name string) error { return k.setPaused(name, false) }

func (k *Manager) setPaused(name string, paused bool) error {
	c, err := k.get(name)
	if err != nil {
		return err
	}
	if err := c.change(func(r *record) { r.Paused = paused }); err != nil {
		return err
	}
	k.states.Notify()
	k.changed.Notify()
	if !paused {
		c.wake()
	}
	return nil
}

// Change gives it other settings. A control plane that runs starts again for those of its
// process; a quota holds at once for what is made from now on, and what is beyond it has to be
// given back.
func (k *Manager) Change(ctx context.Context, name string, to Change) (View, error) {
	c, err := k.get(name)
	if err != nil {
		return View{}, err
	}
	set := func(r *record) {
		if to.Sleep != nil {
			r.Sleep = *to.Sleep
		}
		if to.Memory != nil {
			r.Memory = *to.Memory
		}
		if to.Datastore != nil {
			r.Datastore = *to.Datastore
		}
		if to.Quota != nil {
			r.Quota = *to.Quota
		}
		if to.Guarantee != nil {
			r.Guarantee = *to.Guarantee
		}
	}
	next := c.record()
	if set(&next); next.Spec.Memory == 0 {
		return View{}, errors.New("a control plane does not start without memory; give it some, or leave it as it is")
	}
	if err := next.Spec.Check(); err != nil {
		return View{}, err
	}
	change := func() error { return c.change(set) }
	if now := c.record(); now.Sleep != next.Sleep || now.Memory != next.Memory || now.datastore() != next.datastore() {
		err = c.still(ctx, "a change of its settings", change)
	} else {
		err = change()
	}
	k.changed.Notify()
	k.states.Notify()
	if err != nil {
		return View{}, err
	}
	return c.view(), nil
}

// Delete removes it with all that it has, and returns when nothing is left.
func (k *Manager) Delete(ctx context.Context, name string) error {
	c, err := k.get(name)
	if err != nil {
		return err
	}
	if err := c.change(func(r *record) { r.Deleting = true }); err != nil {
		return err
	}
	k.changed.Notify()
	select {
	case <-c.done:
		if !c.gone {
			return errors.New("rivulet stops; the deletion goes on when it runs again")
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w; the deletion goes on, see: rivulet vcluster list", ctx.Err())
	}
}

// Await returns once it is awake, or why it is not.
func (k *Manager) Await(ctx context.Context, name string) (View, error) {
	c, err := k.get(name)
	if err != nil {
		return View{}, err
	}
	c.wake()
	for {
		v, changed := c.watch()
		switch v.State {
		case Awake:
			return v, nil
		case Paused:
			return v, fmt.Errorf("%s is paused; resume it: rivulet vcluster resume %s", name, name)
		case Deleting:
			return v, fmt.Errorf("%s is being deleted; see: rivulet vcluster list", name)
		case Failed:
			return v, fmt.Errorf("%s does not start: %s; see: rivulet vcluster logs %s", name, v.Reason, name)
		}
		select {
		case <-changed:
		case <-c.done:
			return v, fmt.Errorf("%s has ended; see: rivulet vcluster list", name)
		case <-ctx.Done():
			return v, fmt.Errorf("%s: %w while it starts; see: rivulet vcluster logs %s", name, ctx.Err(), name)
		}
	}
}

// klogLine is the head of a line of Kubernetes's log, which says nothing to users.
var klogLine = regexp.MustCompile(`^[IWEF]\d{4} [0-9:.]+ +\d+ [^]]+\] `)

// Log is the file of what its control plane says.
func (k *Manager) Log(name string) (string, error) {
	c, err := k.get(name)
	if err != nil {
		return "", err
	}
	return c.logFile(), nil
}
