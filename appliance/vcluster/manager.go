// Package vcluster manages the virtual clusters of a device. Each is a control plane in a process of this executable
// (package tenant) while it is used, and only a listening socket otherwise; see docs/design/vclusters.md.
//
// It reads calls of Manager. It alone writes <state>/vclusters/NAME and <run>/vcluster-NAME.pid, holds the listening
// sockets, and starts and ends the processes. Restart: processes continue without the supervisor, which finds them and
// their sockets again by process number and start time. Failure as the user sees it: state Failed with the reason in
// `rivulet vcluster list`; waiting clients are refused, and the next request tries again.
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

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/appliance/api"
	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// Config is the input of New. All fields but Addresses and DNS are required.
type Config struct {
	State, Run string // Rivulet's folders
	Executable string
	// ID is this cluster's identity.
	ID peer.ID
	// Address is where virtual clusters listen.
	Address netip.Addr
	// Services is the CIDR of a virtual cluster's Services, DNS the resolver of its pods, in it; invalid is none.
	Services netip.Prefix
	DNS      netip.Addr
	// Pods is the pod CIDR of the host.
	Pods netip.Prefix
	// Addresses checks the addresses of pods that API servers connect to; nil is none.
	Addresses Addresses
	// Standbys: another device may become the cluster's server, and would not have its virtual clusters: none is made.
	Standbys bool
	Log      *slog.Logger
}

// Limits of a device.
const (
	// MaxClusters bounds the virtual clusters of a device.
	MaxClusters = 200
	// maxName is the longest name, bytes, so that names derived from it are valid.
	maxName = 40
	// DefaultSleep is the time without use after which a virtual cluster sleeps.
	DefaultSleep = 30 * time.Minute
	// minSleep is the shortest such time.
	minSleep = 10 * time.Second
	// DefaultMemory limits the process, bytes; minMemory is the least in which a control plane starts.
	DefaultMemory, minMemory = 512 << 20, 256 << 20
	// planeMemory is the memory of an awake control plane with little load, bytes. It is reserved for sleeping ones,
	// too: otherwise the lent capacity would change with each start.
	planeMemory = 112 << 20
	// DefaultDatastore bounds the datastore, bytes; minDatastore is the least useful bound.
	DefaultDatastore, minDatastore = 256 << 20, 16 << 20
	// nearlyFull is the use from which a datastore is reported, percent.
	nearlyFull = 80

	firstPort = 17000
	firstUID  = 2000742000
	// steady is how long a process must have run to be started at once after a crash.
	steady = time.Minute
	// leastRest is the shortest sleep before due work, failedRest that after a failed start.
	leastRest, failedRest = 15 * time.Second, 10 * time.Minute
	// wakeLimit is how long a start may take until the process is usable.
	wakeLimit = 3 * time.Minute
)

// pace has the times that tests shorten.
type pace struct {
	// sleep is minSleep.
	sleep time.Duration
	// firstWait and longWait are the pauses after a start that failed, the first and the longest.
	firstWait, longWait time.Duration
	// replace is how long after an upgrade a process of the earlier version may run.
	replace time.Duration
	// debt is the delay of a start after a change at the host, to handle several changes with one start. It is doubled up
	// to maxFlaps times while only readiness changes.
	debt time.Duration
	// meter is meterEvery.
	meter time.Duration
}

var usualPace = pace{sleep: minSleep, firstWait: time.Second, longWait: 30 * time.Second, replace: 24 * time.Hour, debt: time.Minute, meter: meterEvery}

// Spec has the settings of a virtual cluster.
type Spec struct {
	Name string `json:"name"`
	// Sleep is the time without use after which it sleeps; 0 is never.
	Sleep time.Duration `json:"sleep"`
	// WatchKeepsAwake: watches from outside are use as long as they last.
	WatchKeepsAwake bool `json:"watchKeepsAwake,omitempty"`
	// Memory limits its process, bytes.
	Memory int64 `json:"memory"`
	// Datastore bounds the size of its objects and their history on the disk, bytes; 0 is the default.
	Datastore int64 `json:"datastore,omitempty"`
	// Quota bounds the requests of its pods (cpu, memory, pods) and its claims (storage). Resources without a quota are
	// bounded by the total of all virtual clusters.
	Quota corev1.ResourceList `json:"quota,omitempty"`
	// Guarantee is kept free for its pods (cpu, memory, pods), independent of the use by other virtual clusters.
	Guarantee corev1.ResourceList `json:"guarantee,omitempty"`
	// Ports are the only ones of the LAN that its Services may get, such as 31000-31009; empty: any that the device lends.
	Ports string `json:"ports,omitempty"`
	// Targets are the peers on which its pods may run, too: names, IDs, or AllTargets. Empty: none.
	Targets []string `json:"targets,omitempty"`
	// Groups bound it together with others: its course, and the course's department.
	Groups []Group `json:"groups,omitempty"`
}

// Group bounds several virtual clusters together, see offer.Group.
type Group = offer.Group

// CheckGroup returns what is wrong with a group.
func CheckGroup(g Group) error {
	if g.Name == "" || len(g.Name) > 253 {
		return fmt.Errorf("%.60q is no name for a group; use at most 253 characters", g.Name)
	}
	return checkQuota("cap", "cpu, memory and pods", g.Cap, quotable[:3])
}

// quotable are the resources of a quota; a guarantee has no storage.
var quotable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceStorage}

const quotaHas = "cpu, memory, pods and storage"

// ParseQuota parses a quota or a guarantee, such as cpu=2,memory=4Gi,pods=20,storage=10Gi; none is no quota.
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

// Check sets defaults in the spec and returns what is wrong with it.
func (s *Spec) Check() error { return s.check(minSleep) }

func (s *Spec) check(leastSleep time.Duration) error {
	if errs := validation.IsDNS1123Label(s.Name); len(errs) > 0 || len(s.Name) > maxName {
		return fmt.Errorf("%.60q is no name for a virtual cluster; use at most %d small letters, digits and dashes", s.Name, maxName)
	}
	if s.Sleep != 0 && s.Sleep < leastSleep {
		return fmt.Errorf("a virtual cluster sleeps after %s or more, not %s; use 0 for never", leastSleep, s.Sleep)
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
	if _, err := offer.ParsePorts(s.Ports); err != nil {
		return err
	}
	if err := checkTargets(s.Targets); err != nil {
		return err
	}
	for _, g := range s.Groups {
		if err := CheckGroup(g); err != nil {
			return err
		}
	}
	return errors.Join(checkQuota("quota", quotaHas, s.Quota, quotable), checkQuota("guarantee", "cpu, memory and pods", s.Guarantee, quotable[:3]))
}

// datastore returns the bound, also for records without one.
func (s Spec) datastore() int64 { return cmp.Or(s.Datastore, DefaultDatastore) }

func (s Spec) withDefaults() Spec {
	s.Datastore = s.datastore()
	return s
}

// Change has the settings to change; nil stays.
type Change struct {
	Sleep *time.Duration `json:"sleep,omitempty"`
	// WatchKeepsAwake is Spec.WatchKeepsAwake.
	WatchKeepsAwake *bool                `json:"watchKeepsAwake,omitempty"`
	Memory          *int64               `json:"memory,omitempty"`
	Datastore       *int64               `json:"datastore,omitempty"`
	Quota           *corev1.ResourceList `json:"quota,omitempty"`
	// Guarantee is Spec.Guarantee.
	Guarantee *corev1.ResourceList `json:"guarantee,omitempty"`
	Groups    *[]Group             `json:"groups,omitempty"`
	Ports     *string              `json:"ports,omitempty"`
	// Targets is Spec.Targets.
	Targets *[]string `json:"targets,omitempty"`
}

// Owner is the home cluster's object for a virtual cluster; empty for one that was created by a command.
type Owner struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

func (o Owner) String() string { return o.Namespace + "/" + o.Name }

// record is the stored form of a virtual cluster.
type record struct {
	Spec
	Owner   Owner     `json:"owner,omitzero"`
	UID     int       `json:"uid"` // user and group of its process
	ID      peer.ID   `json:"id"`  // its identity as a consumer of the host and of its targets
	Seed    string    `json:"seed,omitempty"`
	Port    uint16    `json:"port"`
	Created time.Time `json:"created"`
	Paused  bool      `json:"paused,omitempty"`
	// Consumed is up to date in memory, and written from time to time.
	Consumed Consumed `json:"consumed,omitzero"`
	// Due is when it has work of its own again; zero is never.
	Due time.Time `json:"due,omitzero"`
	// Seen is the state of its pods at the host when it fell asleep. Zero is unknown, and not due.
	Seen offer.PodsState `json:"seen,omitzero"`
	// Restoring: it is incomplete, and is deleted if the restore is interrupted.
	Restoring bool `json:"restoring,omitempty"`
	// Deleting: only its removal is left to do.
	Deleting bool `json:"deleting,omitempty"`
}

// State is the state of a virtual cluster.
type State string

const (
	Starting State = "Starting"
	Awake    State = "Awake"
	Asleep   State = "Asleep"
	Paused   State = "Paused"
	Failed   State = "Failed"
	Deleting State = "Deleting"
)

// View is a virtual cluster as shown to users.
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
	// Old: its process is of another version than the supervisor.
	Old bool `json:"old,omitempty"`
	// Private is the memory of its process alone, Disk the size of its datastore, bytes.
	Private int64 `json:"private"`
	Disk    int64 `json:"disk"`
	// Stored is the part of its datastore's bound in use by objects and their history, bytes.
	Stored int64 `json:"stored"`
	// Pods are the unfinished pods on the host; Use has their requests, and its claims.
	Pods int                 `json:"pods"`
	Use  corev1.ResourceList `json:"use,omitempty"`
	// Consumed is what it has had since its creation.
	Consumed Consumed `json:"consumed,omitzero"`
	// LastUse is the last request by LastUser through the control port, or when root of the device asked for access;
	// zero: none since the supervisor started.
	LastUse  time.Time `json:"lastUse,omitzero"`
	LastUser string    `json:"lastUser,omitempty"`
	// Room is how many more virtual clusters may be awake now by the device's memory.
	Room int `json:"room"`
	// WaitsForMemory: it starts when another one sleeps.
	WaitsForMemory bool `json:"waitsForMemory,omitempty"`
	// Took is how long the last start took until the process was usable.
	Took time.Duration `json:"took,omitempty"`
}

// Uses is the use of each resource, and the quota if there is one.
func (v View) Uses() string {
	var out []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceStorage} {
		out = append(out, string(name)+" "+v.UseOf(name))
	}
	return strings.Join(out, ", ")
}

// UseOf is what its pods and claims request of a resource, and the quota if there is one.
func (v View) UseOf(name corev1.ResourceName) string {
	used := v.Use[name]
	if most, bounded := v.Quota[name]; bounded {
		return used.String() + " of " + most.String()
	}
	return used.String()
}

// Manager manages all virtual clusters. Its methods may be called at any time.
type Manager struct {
	cfg Config

	mu   sync.Mutex
	all  map[string]*cluster
	ctx  context.Context // of Run; nil before
	work sync.WaitGroup

	dial     func(ctx context.Context, network, addr string) (net.Conn, error) // connects to a pod
	pace     pace
	turns    chan struct{} // one element for each start in progress
	room     *room
	changed  changes.Signal // Consumers may have changed
	states   changes.Signal // Briefs may have changed
	routes   *http.ServeMux // of all virtual clusters
	routesMu sync.Mutex
	slots    map[string]*atomic.Pointer[http.Handler] // by pattern
	host     atomic.Pointer[Host]
	pods     atomic.Pointer[Pods]
	targets
	ended  endings
	unread atomic.Bool // some records could not be read
}

// New returns a Manager without virtual clusters; Run reads them.
func New(cfg Config) *Manager {
	k := &Manager{cfg: cfg, dial: (&net.Dialer{}).DialContext, pace: usualPace, all: map[string]*cluster{}, turns: make(chan struct{}, runtime.NumCPU()), room: newRoom(host.RAM()), routes: http.NewServeMux(), slots: map[string]*atomic.Pointer[http.Handler]{}}
	k.targets.k, k.ended.file = k, paths.EndedVirtualClusters(cfg.State)
	return k
}

func (k *Manager) folder() string { return paths.VirtualClusters(k.cfg.State) }

// Run manages them until ctx ends; their processes continue. It may be called again.
func (k *Manager) Run(ctx context.Context, ready func()) error {
	records, err := k.load()
	if err != nil {
		return err
	}
	k.endStrays(ctx, records)
	k.ended.load(records, k.cfg.Log)
	k.mu.Lock()
	k.ctx, k.all = ctx, map[string]*cluster{}
	for _, c := range counted(k, records) {
		k.keep(c)
	}
	k.mu.Unlock()
	k.changed.Notify()
	ready()
	meter(ctx, k)
	k.mu.Lock()
	k.ctx = nil
	k.mu.Unlock()
	k.work.Wait()
	return nil
}

// counted makes the virtual clusters of records; those that may run have their places before any starts.
func counted(k *Manager, records []record) (all []*cluster) {
	var may []*cluster
	for _, r := range records {
		c := newCluster(k, r)
		all = append(all, c)
		if _, err := os.Lstat(c.pidFile()); err == nil {
			may = append(may, c)
		}
	}
	k.room.begin(may)
	return all
}

// begin starts the goroutine of a virtual cluster. The caller holds the lock.
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

// recordName is the file that makes a folder a virtual cluster.
const recordName = "vcluster.json"

func (k *Manager) load() (out []record, err error) {
	entries, err := os.ReadDir(k.folder())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, diskErr(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), restorePrefix) { // an interrupted restore
			_ = os.RemoveAll(filepath.Join(k.folder(), e.Name()))
			continue
		}
		path := filepath.Join(k.folder(), e.Name(), recordName)
		raw, err := os.ReadFile(path)
		var r record
		switch {
		case errors.Is(err, fs.ErrNotExist) && holdsDatastore(filepath.Join(k.folder(), e.Name())):
			err = fmt.Errorf("%w; restore it from a backup, or remove the folder", err)
		case errors.Is(err, fs.ErrNotExist): // an interrupted creation or removal
			k.cfg.Log.Warn("removing what is left of a virtual cluster that was never made, or is deleted", "folder", e.Name())
			err = os.RemoveAll(filepath.Join(k.folder(), e.Name()))
		case err == nil:
			if err = json.Unmarshal(raw, &r); err == nil && r.Name != e.Name() {
				err = errors.New("it is of another virtual cluster")
			}
			if err == nil && r.ID == "" { // a record without identity has no pods
				r.ID, r.Seed = newID(k.cfg.ID)
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

// holdsDatastore reports whether the folder of a virtual cluster holds a datastore. A creation writes the record before
// it, and a removal deletes it before the record: a datastore without a record was left by something else, and a person
// decides.
func holdsDatastore(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "root", controlplane.Data))
	return !errors.Is(err, fs.ErrNotExist)
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

// Create creates a virtual cluster and starts it.
func (k *Manager) Create(spec Spec) (View, error) { return k.CreateFor(spec, Owner{}) }

// CreateFor creates the virtual cluster of an object.
func (k *Manager) CreateFor(spec Spec, owner Owner) (View, error) {
	if err := spec.check(k.pace.sleep); err != nil {
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
	return c.view(c.k.room.free()), nil
}

// newRecord allocates the unique values of a virtual cluster. The caller holds the lock.
func (k *Manager) newRecord(spec Spec) (r record, err error) {
	switch {
	case k.ctx == nil:
		return r, errNotYet
	case k.cfg.Standbys:
		return r, errors.New("this cluster has standby servers, which could not go on with its virtual clusters; make it on a cluster without standbys")
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
	id, seed := newID(k.cfg.ID)
	return record{Spec: spec, UID: firstUID + slot, ID: id, Seed: seed, Port: uint16(firstPort + slot), Created: time.Now().Truncate(time.Second)}, nil
}

// free reports whether the port of a slot is available.
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

// StatesChanged reports changes of Briefs.
func (k *Manager) StatesChanged() (<-chan struct{}, func()) { return k.states.Changed() }

// Briefs returns all, by name, without measured values: memory, disk and use.
func (k *Manager) Briefs() []View { return k.views((*cluster).brief) }

// List returns all, by name.
func (k *Manager) List() []View {
	free := k.room.free() // reads a file
	return k.views(func(c *cluster) View { return c.view(free) })
}

// Usage is what a virtual cluster uses of the machine.
func (v View) Usage() api.VCluster {
	return api.VCluster{
		Name: v.Name, State: string(v.State), Memory: v.Private, MemoryLimit: v.Memory, Disk: v.Disk, Datastore: v.Stored, DatastoreLimit: v.Datastore,
		Pods: v.Pods, Use: v.Use, Quota: v.Quota, Started: v.Took, Created: v.Created,
	}
}

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

// Usages lists what all use of the machine, by name.
type Usages struct{ Of *Manager }

func (u Usages) Usages() (out []api.VCluster) {
	for _, v := range u.Of.List() {
		out = append(out, v.Usage())
	}
	return out
}

// Get returns one.
func (k *Manager) Get(name string) (View, error) {
	c, err := k.get(name)
	if err != nil {
		return View{}, err
	}
	return c.view(c.k.room.free()), nil
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

// sleepWait is how long a control plane may take to fall asleep: work of its own that is due may come first.
const sleepWait = time.Minute

// Sleep ends the control plane of one, in use or not, or takes back a start that waits for memory, and returns when it is
// asleep. The next request wakes it.
func Sleep(ctx context.Context, k *Manager, name string) error {
	c, err := k.get(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sleepWait)
	defer cancel()
	for {
		v, changed := c.watch()
		switch v.State {
		case Asleep:
			return nil
		case Awake:
			if v.Old {
				return fmt.Errorf("the control plane of %s is of another version and is replaced once nobody uses it; try again after that, or: rivulet vcluster pause %[1]s", name)
			}
			c.mu.Lock()
			if c.proc != nil && !c.forced {
				c.forced = true
				_ = unix.PidfdSendSignal(c.proc.fd, controlplane.SleepSignal, nil, 0)
			}
			c.mu.Unlock()
		case Starting:
			withdraw(c)
		default:
			return fmt.Errorf("%s is %s and cannot fall asleep; see: rivulet vcluster describe %[1]s", name, strings.ToLower(string(v.State)))
		}
		select {
		case <-changed:
		case <-c.done:
			return errNone
		case <-ctx.Done():
			return fmt.Errorf("%s is still %s: %w; it may have work of its own, see: rivulet vcluster logs %[1]s", name, strings.ToLower(string(v.State)), ctx.Err())
		}
	}
}

// Change changes settings. A running control plane restarts for settings of its process. A quota applies at once to new
// objects; existing use above it is not evicted.
func (k *Manager) Change(ctx context.Context, name string, to Change) (View, error) {
	c, err := k.get(name)
	if err != nil {
		return View{}, err
	}
	set := func(r *record) {
		if to.Sleep != nil {
			r.Sleep = *to.Sleep
		}
		if to.WatchKeepsAwake != nil {
			r.WatchKeepsAwake = *to.WatchKeepsAwake
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
		if to.Ports != nil {
			r.Ports = *to.Ports
		}
		if to.Targets != nil {
			r.Targets = *to.Targets
		}
		if to.Groups != nil {
			r.Groups = *to.Groups
		}
	}
	next := c.record()
	if set(&next); next.Spec.Memory == 0 {
		return View{}, errors.New("a control plane does not start without memory; give it some, or leave it as it is")
	}
	if err := next.Spec.check(k.pace.sleep); err != nil {
		return View{}, err
	}
	if len(next.Targets) > 0 && !next.targetable(k.cfg.ID) {
		return View{}, fmt.Errorf("%s has an identity of an earlier version, or of another device, and peers do not accept it; make it anew from a snapshot: rivulet vcluster snapshot %[1]s FILE, and rivulet vcluster restore FILE", name)
	}
	change := func() error { return c.change(set) }
	if now := c.record(); now.Sleep != next.Sleep || now.WatchKeepsAwake != next.WatchKeepsAwake || now.Memory != next.Memory || now.datastore() != next.datastore() {
		err = c.still(ctx, "a change of its settings", change)
	} else {
		err = change()
	}
	k.changed.Notify()
	k.states.Notify()
	if err != nil {
		return View{}, err
	}
	return c.view(c.k.room.free()), nil
}

// Delete removes it with all its data, and returns when nothing is left.
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

// Await returns once it is awake, or an error with the reason why it is not.
func (k *Manager) Await(ctx context.Context, name string) (View, error) {
	c, err := k.get(name)
	if err != nil {
		return View{}, err
	}
	c.wake()
	var full <-chan time.Time // told after a while
	for {
		v, changed := c.watch()
		if v.WaitsForMemory && full == nil {
			full = time.After(roomPatience)
		}
		switch v.State {
		case Awake:
			return v, nil
		case Paused:
			return v, pausedError{v}
		case Deleting:
			return v, fmt.Errorf("%s is being deleted; see: rivulet vcluster list", name)
		case Failed:
			return v, fmt.Errorf("%s does not start: %s; see: rivulet vcluster logs %s", name, v.Reason, name)
		case Asleep:
			if full != nil {
				return v, fmt.Errorf("%s was put to sleep while it waited for memory; ask for it again", name)
			}
		}
		select {
		case <-changed:
		case <-full:
			if v = c.brief(); v.WaitsForMemory {
				return v, fmt.Errorf("%s waits: %s", name, v.Reason)
			}
			full = nil
		case <-c.done:
			return v, fmt.Errorf("%s has ended; see: rivulet vcluster list", name)
		case <-ctx.Done():
			return v, fmt.Errorf("%s: %w while it starts; see: rivulet vcluster logs %s", name, ctx.Err(), name)
		}
	}
}

// pausedError is that of a paused virtual cluster, for who runs this device.
type pausedError struct{ View }

func (e pausedError) Error() string {
	if e.Owner != (Owner{}) { // the command would be refused
		return fmt.Sprintf("%s is paused; its course has ended, or its object is paused: change spec.expires of the Course, or spec.paused of VirtualCluster %s", e.Name, e.Owner)
	}
	return fmt.Sprintf("%s is paused; resume it: rivulet vcluster resume %[1]s", e.Name)
}

// klogLine matches the prefix of a Kubernetes log line, which is of no use to users.
var klogLine = regexp.MustCompile(`^[IWEF]\d{4} [0-9:.]+ +\d+ [^]]+\] `)

// Log returns the path of its control plane's log.
func (k *Manager) Log(name string) (string, error) {
	c, err := k.get(name)
	if err != nil {
		return "", err
	}
	return c.logFile(), nil
}
