package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/health"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/offer"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// peer stands in for another cluster: its twins are namespaces of the same API server,
// and it has one folder for each claim.
type peer struct {
	name   string
	client kubernetes.Interface
	dir    string
	ready  atomic.Bool
	// spoil has the next writes fail, tear ends what is read in the middle.
	spoil, tear atomic.Pointer[error]
	// place is the peer as home's virtual node.
	place *volume.Place
}

func (p *peer) Offloaded(string) bool { return true }
func (p *peer) Up() bool              { return p.ready.Load() }
func (p *peer) Freed(string)          {}

func (p *peer) Name() string                                          { return p.name }
func (p *peer) ID() string                                            { return "id-of-" + p.name }
func (p *peer) twin() string                                          { return "twin-on-" + p.name }
func (p *peer) Client() kubernetes.Interface                          { return p.client }
func (p *peer) Config() *rest.Config                                  { return nil }
func (p *peer) Offers(context.Context) <-chan offer.Offer             { return nil }
func (p *peer) Home(a netip.Addr) (netip.Addr, bool)                  { return a, true }
func (p *peer) Away(a netip.Addr) (netip.Addr, bool)                  { return a, true }
func (p *peer) Release(context.Context, string) error                 { return nil }
func (p *peer) Gone(context.Context, string) (bool, error)            { return false, nil }
func (p *peer) Namespace(_ context.Context, _ string) (string, error) { return p.twin(), nil }
func (p *peer) Twins(context.Context) (map[string]string, error) {
	return map[string]string{"lab": p.twin()}, nil
}
func (p *peer) folder(claim string) string { return filepath.Join(p.dir, claim) }

// wide bounds nothing that a test makes.
var wide = filetree.Bounds{Entries: 1 << 20, Logical: 1 << 40, Data: 1 << 40}

func (p *peer) VolumeTotal(ctx context.Context, _, c string) (filetree.Total, error) {
	return filetree.Measure(ctx, p.folder(c), wide)
}
func (p *peer) VolumeSum(ctx context.Context, _, c string) (filetree.Sum, error) {
	return filetree.SumUp(ctx, p.folder(c), wide)
}

func (p *peer) VolumeRead(ctx context.Context, _, c string) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(filetree.Pack(ctx, p.folder(c), wide, w)) }()
	if err := p.tear.Load(); err != nil {
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(r, 700), failing{*err}), r}, nil
	}
	return r, nil
}

func (p *peer) VolumeWrite(ctx context.Context, _, c string, _ int64, files io.Reader) (s filetree.Sum, err error) {
	if err := p.spoil.Load(); err != nil {
		return s, *err
	}
	if err := errors.Join(os.RemoveAll(p.folder(c)), os.MkdirAll(p.folder(c), 0o777), filetree.Unpack(ctx, p.folder(c), wide, files)); err != nil {
		return s, err
	}
	return filetree.SumUp(ctx, p.folder(c), wide)
}

// failing is where a connection breaks.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// world is one API server with home's provisioner and the peers; most tests use the first.
type world struct {
	t      *testing.T
	client kubernetes.Interface
	dir    string
	local  cluster
	peer   *peer
	peers  map[string]*peer
	events *record.FakeRecorder
}

func newWorld(t *testing.T, names ...string) *world {
	server := apiserver.Start(t, "--kube-controller-manager-arg=pvclaimbinder-sync-period=1s") // when it looks again for a claim's volume
	apiserver.StartKubelet(t, server, "here")
	apiserver.StartKubelet(t, server, "there")
	w := &world{t: t, client: server.Client, dir: t.TempDir(), peers: map[string]*peer{}, events: record.NewFakeRecorder(1000)}
	w.local = cluster{Local: volumes.NewLocal(w.dir, "here"), worker: volumes.NewLocal(t.TempDir(), "there"), off: new(atomic.Bool)}
	w.namespace("lab")
	for _, name := range names {
		p := &peer{name: name, client: server.Client, dir: t.TempDir()}
		p.ready.Store(true)
		p.place = &volume.Place{Node: name, Target: p, Owner: p}
		w.peers[name] = p
		w.namespace(p.twin())
	}
	w.peer = w.peers[names[0]]
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 3)
	for _, l := range []*volumes.Local{w.local.Local, w.local.worker} {
		s := volumes.New(volumes.Config{Client: w.client, Local: l, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)})
		go func() { done <- s.Run(ctx, func() { ready <- struct{}{} }) }()
	}
	v := volume.New(volume.Config{Home: w.client, Cluster: "id-of-a", Peer: func(id string) string { return strings.TrimPrefix(id, "id-of-") }, Recorder: w.events, Log: slog.New(slog.DiscardHandler)})
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; <-done; <-done })
	<-ready
	<-ready
	for _, p := range w.peers {
		v.Serve(p.place)
	}
	return w
}

func (w *world) namespace(name string) {
	w.t.Helper()
	_, err := w.client.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) mover(stopAt string, patience time.Duration) (m *Mover, gone <-chan struct{}) {
	ctx, cancel := context.WithCancel(w.t.Context())
	m = New(Config{Home: w.client, Cluster: "id-of-a", Local: w.local, Recorder: w.events, Log: slog.New(slog.DiscardHandler), Patience: patience, Pause: 200 * time.Millisecond,
		Place: func(node string) *volume.Place {
			if p := w.peers[node]; p != nil {
				return p.place
			}
			return nil
		}})
	m.step = func(at string) error {
		if at == stopAt {
			cancel()
			return errors.New("the power is gone")
		}
		return ctx.Err()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx)
	}()
	await.True(w.t, time.Minute, "the mover runs", func() bool { return m.alive() != nil || ctx.Err() != nil })
	w.t.Cleanup(func() { cancel(); <-done })
	return m, done
}

// claim makes one at home with a file in it.
func (w *world) claim(name string) { w.claimOn(name, "here") }

func (w *world) claimOn(name, node string) {
	w.t.Helper()
	class := volumes.ClassName
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"keep": "me"},
		Annotations: map[string]string{storageutil.AnnSelectedNode: node, "note": "mine"}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}
	_, err := w.client.CoreV1().PersistentVolumeClaims("lab").Create(w.t.Context(), c, metav1.CreateOptions{})
	w.must(err)
	await.NoError(w.t, w.t.Context(), time.Minute, "bound", func() error {
		c, err := w.client.CoreV1().PersistentVolumeClaims("lab").Get(w.t.Context(), name, metav1.GetOptions{})
		if err == nil && c.Status.Phase != corev1.ClaimBound { // the volume says so a moment before
			err = errors.New(string(c.Status.Phase))
		}
		return err
	})
	v := w.volume(name)
	w.must(os.WriteFile(filepath.Join(v.Spec.Local.Path, "x"), []byte(name), 0o640))
}

func (w *world) volume(claim string) *corev1.PersistentVolume {
	w.t.Helper()
	c, err := w.client.CoreV1().PersistentVolumeClaims("lab").Get(w.t.Context(), claim, metav1.GetOptions{})
	w.must(err)
	if c.Spec.VolumeName == "" {
		return nil
	}
	v, err := w.client.CoreV1().PersistentVolumes().Get(w.t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
	w.must(err)
	return v
}

// settled waits until the claim is bound where it is to be, nothing remembers a move of
// it, its data are whole, and there is one copy.
func (w *world) settled(claim, where string) {
	w.t.Helper()
	await.NoError(w.t, w.t.Context(), time.Minute, "settled", func() error {
		c, err := w.client.CoreV1().PersistentVolumeClaims("lab").Get(w.t.Context(), claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c.DeletionTimestamp != nil || c.Status.Phase != corev1.ClaimBound || slices.Contains(c.Finalizers, Finalizer) {
			return fmt.Errorf("%s %v %v", c.Status.Phase, c.DeletionTimestamp, c.Finalizers)
		}
		if c.Labels["keep"] != "me" || c.Annotations["note"] != "mine" {
			w.t.Fatalf("labels or annotations are lost: %+v", c.ObjectMeta)
		}
		list, err := w.client.CoreV1().PersistentVolumes().List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, v := range list.Items {
			ours := v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name == claim
			if ours && (v.Name != c.Spec.VolumeName || v.Annotations[volume.MoveAnnotation] != "" || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete) {
				return fmt.Errorf("volume %s: %s %v", v.Name, v.Spec.PersistentVolumeReclaimPolicy, v.Annotations)
			}
		}
		return nil
	})
	v := w.volume(claim)
	away := w.peers[where]
	if away == nil && v.Labels[volume.AwayLabel] != "" || away != nil && v.Labels[volume.AwayLabel] != away.ID() {
		w.t.Fatalf("to be on %s, the volume is %+v", where, v.ObjectMeta)
	}
	at := ""
	if away != nil {
		at = away.folder(v.Annotations[volume.ClaimAnnotation])
	} else {
		at = v.Spec.Local.Path
	}
	if raw, err := os.ReadFile(filepath.Join(at, "x")); err != nil || string(raw) != claim {
		w.t.Fatalf("data: %q %v", raw, err)
	}
	await.NoError(w.t, w.t.Context(), time.Minute, "one copy", func() error {
		copies := map[string]int{}
		homes, _ := filepath.Glob(filepath.Join(w.dir, "lab_"+claim+"_*"))
		copies[Home] = len(homes)
		for _, p := range w.peers {
			twins, err := w.client.CoreV1().PersistentVolumeClaims(p.twin()).List(w.t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, c := range twins.Items {
				if c.Annotations[volume.HomeClaimAnnotation] == claim {
					copies[p.name]++
				}
			}
		}
		for place, n := range copies {
			if want := map[bool]int{true: 1}[place == where]; n != want {
				return fmt.Errorf("copies: %v, to be on %s only", copies, where)
			}
		}
		if copies[where] != 1 {
			return fmt.Errorf("copies: %v, to be on %s", copies, where)
		}
		return nil
	})
}

func (w *world) start(m *Mover, claim, to string) *Job {
	w.t.Helper()
	j, err := m.Start(w.t.Context(), Request{Namespace: "lab", Claim: claim, To: to})
	w.must(err)
	return j
}

func ended(t *testing.T, j *Job) error {
	t.Helper()
	select {
	case <-j.Ended():
		return j.Err()
	case <-time.After(2 * time.Minute):
		t.Fatalf("no end: %+v", j.Progress())
	}
	return nil
}

// TestMoves shows moves both ways on a real API server: the power gone at every step,
// places that refuse, links that are cut, claims that others make and delete meanwhile.
func TestMoves(t *testing.T) {
	w := newWorld(t, "b", "c")

	for i, at := range []string{"held", "prepared", "copied", "written down", "switched"} {
		t.Run("power gone: "+at, func(t *testing.T) {
			w.t = t
			name := fmt.Sprint("power", i)
			w.claim(name)
			for _, to := range []string{"b", Home} {
				m, gone := w.mover(at, 0)
				_ = ended(t, w.start(m, name, to))
				<-gone
				_, _ = w.mover("", 0)
				w.settled(name, to)
			}
		})
	}

	betweenPeers(t, w)
	fromAWorker(t, w)

	t.Run("no room there", func(t *testing.T) {
		w.t = t
		w.claim("full")
		full := fmt.Errorf("b: %w", filetree.ErrNoRoom)
		w.peer.spoil.Store(&full)
		defer w.peer.spoil.Store(nil)
		m, _ := w.mover("", 0)
		if err := ended(t, w.start(m, "full", "b")); err == nil || !strings.Contains(err.Error(), "no room on the disk") {
			t.Errorf("%v", err)
		}
		w.settled("full", Home)
	})

	t.Run("cut for too long", func(t *testing.T) {
		w.t = t
		w.claim("cut")
		cut := errors.New("the link is cut")
		w.peer.spoil.Store(&cut)
		defer w.peer.spoil.Store(nil)
		m, _ := w.mover("", time.Millisecond)
		if err := ended(t, w.start(m, "cut", "b")); err == nil || !strings.Contains(err.Error(), "the link is cut; it was tried for") {
			t.Errorf("%v", err)
		}
		w.settled("cut", Home)
	})

	t.Run("cut and back", func(t *testing.T) {
		w.t = t
		w.claim("flap")
		cut := errors.New("the link is cut")
		w.peer.spoil.Store(&cut)
		m, _ := w.mover("", 0)
		j := w.start(m, "flap", "b")
		await.NoError(w.t, w.t.Context(), time.Minute, "trouble is told", func() error {
			if j.Progress().Trouble == "" {
				return errors.New("none")
			}
			return nil
		})
		if again, err := m.Start(t.Context(), Request{Namespace: "lab", Claim: "flap", To: "b"}); again != j {
			t.Errorf("the same command does not join the move: %v", err)
		}
		if _, err := m.Start(t.Context(), Request{Namespace: "lab", Claim: "flap", To: Home}); err == nil || !strings.Contains(err.Error(), "is being moved to b") {
			t.Errorf("two moves at once: %v", err)
		}
		w.peer.spoil.Store(nil)
		if err := ended(t, j); err != nil {
			t.Error(err)
		}
		w.settled("flap", "b")
	})

	t.Run("another makes the claim first", func(t *testing.T) {
		w.t = t
		w.claim("race")
		was := w.volume("race").Spec.ClaimRef.UID
		m, _ := w.mover("", 0)
		// A StatefulSet's controller makes a claim whenever one is missing.
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			class := volumes.ClassName
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = w.client.CoreV1().PersistentVolumeClaims("lab").Create(t.Context(), &corev1.PersistentVolumeClaim{
					ObjectMeta: metav1.ObjectMeta{Name: "race", Labels: map[string]string{"keep": "me"}, Annotations: map[string]string{"note": "mine"}},
					Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
						Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}, metav1.CreateOptions{})
			}
		}()
		err := ended(t, w.start(m, "race", "b"))
		close(stop)
		<-done
		if err != nil {
			t.Error(err)
		}
		if w.volume("race").Spec.ClaimRef.UID == was {
			t.Error("the claim is the old one")
		}
		w.settled("race", "b")
	})

	t.Run("retained", func(t *testing.T) {
		w.t = t
		w.claim("kept")
		old := w.volume("kept")
		old.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		_, err := w.client.CoreV1().PersistentVolumes().Update(t.Context(), old, metav1.UpdateOptions{})
		w.must(err)
		m, _ := w.mover("", 0)
		j := w.start(m, "kept", "b")
		if err := ended(t, j); err != nil || j.Progress().Kept != old.Name {
			t.Errorf("%v %+v", err, j.Progress())
		}
		if _, err := os.Stat(filepath.Join(old.Spec.Local.Path, "x")); err != nil {
			t.Error(err)
		}
		if v := w.volume("kept"); v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			t.Errorf("the copy is not retained: %s", v.Spec.PersistentVolumeReclaimPolicy)
		}
	})

	t.Run("the copy is deleted before the switch", func(t *testing.T) {
		w.t = t
		w.claim("undone")
		for _, at := range []string{"written down", ""} { // the second move shows that nothing of the first is in its way
			m, gone := w.mover(at, 0)
			j := w.start(m, "undone", "b")
			moved := j.note.Volume
			if at == "" {
				if err := ended(t, j); err != nil {
					t.Error(err)
				}
				break
			}
			_ = ended(t, j)
			<-gone
			w.must(w.client.CoreV1().PersistentVolumes().Delete(t.Context(), moved, metav1.DeleteOptions{}))
			_, _ = w.mover("", 0)
			w.settled("undone", Home)
		}
		w.settled("undone", "b")
	})

	t.Run("the namespace goes", func(t *testing.T) {
		w.t = t
		w.claim("last")
		cut := errors.New("the link is cut")
		w.peer.spoil.Store(&cut)
		defer w.peer.spoil.Store(nil)
		m, _ := w.mover("", 0)
		j := w.start(m, "last", "b")
		await.NoError(w.t, w.t.Context(), time.Minute, "it is tried", func() error {
			if j.Progress().Trouble == "" {
				return errors.New("not yet")
			}
			return nil
		})
		w.must(w.client.CoreV1().Namespaces().Delete(t.Context(), "lab", metav1.DeleteOptions{}))
		w.peer.spoil.Store(nil)
		if err := ended(t, j); err == nil || !strings.Contains(err.Error(), "is being deleted") {
			t.Errorf("%v", err)
		}
		await.NoError(w.t, w.t.Context(), time.Minute, "nothing hangs", func() error {
			_, err := w.client.CoreV1().Namespaces().Get(t.Context(), "lab", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("the namespace: %v", err)
			}
			return nil
		})
	})
}

// alive returns Run's context, nil before Run.
func (m *Mover) alive() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life
}
