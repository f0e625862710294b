// Package move moves a claim with its data to another cluster, or home: it holds the claim, copies, binds the claim to
// the copy, and removes the original (docs/design/volumes.md). It reads claims, volumes and pods of home, and the files
// of both places. It alone writes MoveAnnotation on the moved volume, Finalizer on its claim, and the volumes named
// moved-*; the claim is made again. Restart: MoveAnnotation is the only state; an incomplete copy is started again.
// Failure: a lost link is retried for Patience. After that, or when a place refuses, the claim is bound to the old
// volume again, which is unchanged until the switch, and an event on it has the reason.
package move

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/policy"
)

// Finalizer keeps a claim that is being moved.
const Finalizer = "rivulet.dev/moving"

// Home is the destination of a move to the cluster itself: to this device.
const Home = "home"

const (
	// DefaultPatience is how long a failing copy is retried.
	DefaultPatience = 15 * time.Minute
	// leave is how long pods may take to end.
	leave = 5 * time.Minute
	// bind is how long Kubernetes may take to bind or release a claim.
	bind = 2 * time.Minute
	// unmounting is how long a volume may stay mounted after the objects of its pods are gone.
	unmounting = time.Minute
	// stall is how long a copy may make no progress.
	stall = 2 * time.Minute
	// DefaultPause is the pause between two attempts, glance between two checks.
	DefaultPause, glance = 5 * time.Second, 200 * time.Millisecond
)

// Local are the folders of the volumes of this cluster's nodes.
type Local interface {
	// Node is this device's node.
	Node() string
	// Files are those of a volume; an error if it is no folder of a node, or that node cannot be reached. fs.ErrNotExist:
	// this device has no folder of it.
	Files(v *corev1.PersistentVolume) (filetree.Tree, error)
	// Hold keeps a volume of this device from every pod until release, one of another node during each use of files. held
	// ends with ctx, and when the volume is held again or removed. filetree.ErrInUse: a pod has it.
	Hold(ctx context.Context, v *corev1.PersistentVolume) (held context.Context, files filetree.Tree, release func(), err error)
	// Fresh makes an empty folder on this device for a new volume, Discard removes it, and Volume is its object, for the next claim of
	// that name.
	Fresh(namespace, claim, volume string) (string, error)
	Discard(namespace, claim, volume string) error
	Volume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, volume string) *corev1.PersistentVolume
}

// Config are the dependencies of a Mover. All fields but Patience and Pause are required.
type Config struct {
	Home    kubernetes.Interface
	Cluster string // this cluster's ID
	Local   Local
	// Place returns the place of a virtual node, nil if there is none.
	Place    func(node string) *volume.Place
	Recorder record.EventRecorder
	Log      *slog.Logger
	Patience time.Duration // 0 is DefaultPatience
	Pause    time.Duration // 0 is DefaultPause
}

// Request is a user's request for a move.
type Request struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	// To is a virtual node, or Home.
	To string `json:"to"`
	// Evict evicts the pods that use the claim; their replacements wait for the move.
	Evict bool `json:"evict,omitempty"`
}

// Mover moves volumes.
type Mover struct {
	cfg Config

	mu   sync.Mutex
	life context.Context // of Run; nil before
	jobs map[string]*Job // by the volume's name
	done sync.WaitGroup
	// step is called between the steps; tests stop there.
	step func(string) error
}

// New makes a Mover; Run starts it, once.
func New(cfg Config) *Mover {
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Pause == 0 {
		cfg.Pause = DefaultPause
	}
	return &Mover{cfg: cfg, jobs: map[string]*Job{}, step: func(string) error { return nil }}
}

// Run continues the moves of earlier runs, and works until ctx ends.
func (m *Mover) Run(ctx context.Context) error {
	m.mu.Lock()
	m.life = ctx
	m.mu.Unlock()
	defer m.done.Wait()
	list, err := m.cfg.Home.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("move: %w", err)
	}
	for i := range list.Items {
		v := &list.Items[i]
		text := v.Annotations[volume.MoveAnnotation]
		if text == "" {
			continue
		}
		var r note
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			m.cfg.Log.Error("a move that was under way is not understood; remove the annotation "+volume.MoveAnnotation, "volume", v.Name, "err", err)
			continue
		}
		m.cfg.Log.Info("going on with the move of a volume", "volume", v.Name, "to", r.To)
		m.launch(v.Name, r)
	}
	<-ctx.Done()
	return ctx.Err()
}

// note is the state of a move, stored on the old volume.
type note struct {
	Request
	// Was is the claim as it will be made again, Reclaim the old volume's policy.
	Was     *corev1.PersistentVolumeClaim        `json:"was"`
	Reclaim corev1.PersistentVolumeReclaimPolicy `json:"reclaim"`
	// Volume is the new one. Its name is of this move alone.
	Volume string `json:"volume"`
	// Since is the volume.Moment at which the move began; empty: it is of an earlier version.
	Since string `json:"since,omitempty"`
	// Copied: the new volume is complete. Back: the move is undone, with the reason.
	Copied bool   `json:"copied,omitempty"`
	Back   bool   `json:"back,omitempty"`
	Why    string `json:"why,omitempty"`
}

// Start begins a move, or joins the one of that claim that is under way.
func (m *Mover) Start(ctx context.Context, r Request) (*Job, error) {
	if j := m.running(r); j != nil {
		if j.note.To != r.To {
			return nil, fmt.Errorf("%s/%s is being moved to %s; wait for that", r.Namespace, r.Claim, j.note.To)
		}
		return j, nil
	}
	n, v, err := m.plan(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := m.write(ctx, v.Name, n, corev1.PersistentVolumeReclaimRetain); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life == nil || m.life.Err() != nil {
		return nil, fmt.Errorf("rivulet is stopping; the move goes on when it runs again")
	}
	return m.begin(v.Name, n), nil
}

func (m *Mover) running(r Request) *Job {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.jobs {
		if j.note.Namespace == r.Namespace && j.note.Claim == r.Claim {
			return j
		}
	}
	return nil
}

func (m *Mover) launch(name string, n note) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begin(name, n)
}

// begin runs a job; mu is held.
func (m *Mover) begin(name string, n note) *Job {
	if j := m.jobs[name]; j != nil {
		return j
	}
	j := &Job{note: n, volume: name, done: make(chan struct{})}
	m.jobs[name] = j
	m.done.Go(func() {
		err := panics.Call(func() error { return m.transfer(m.life, j) })
		if m.life.Err() != nil {
			err = fmt.Errorf("rivulet is stopping; the move goes on when it runs again")
		}
		m.mu.Lock()
		delete(m.jobs, name)
		m.mu.Unlock()
		j.end(err)
	})
	return j
}

// write stores the note on the old volume, and makes its data be retained in the meantime.
func (m *Mover) write(ctx context.Context, name string, n note, reclaim corev1.PersistentVolumeReclaimPolicy) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return m.change(ctx, name, func(v *corev1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, volume.MoveAnnotation, string(text))
		v.Spec.PersistentVolumeReclaimPolicy = reclaim
	})
}

// change updates the current state of a volume.
func (m *Mover) change(ctx context.Context, name string, f func(*corev1.PersistentVolume)) error {
	return retry(ctx, func() error {
		v, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(v)
		_, err = m.cfg.Home.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		return err
	})
}
